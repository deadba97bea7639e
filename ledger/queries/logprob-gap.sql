-- logprob-gap: Did training and rollout compute the same log-probs, and if not, how bad did it get?
-- params: :run run
-- needs: SELECT count(*) FROM samples WHERE run = :run AND diff IS NOT NULL AND NOT EXISTS (
--   SELECT 1 FROM identity WHERE run = :run AND key = 'loss-type' AND value = 'sft_loss')
-- or: the run has no samples whose log-probs training has computed again
-- SPDX-License-Identifier: Apache-2.0
WITH compared AS ( -- without a difference and its place nobody compared
  SELECT * FROM samples WHERE run = :run AND (diff IS NOT NULL OR diff_at >= 0) AND NOT EXISTS (
    SELECT 1 FROM identity WHERE run = :run AND key = 'loss-type' AND value = 'sft_loss')),
gap AS (
  SELECT count(*) AS samples, total(rollout_logp <> train_logp) AS differing,
         min(CASE WHEN rollout_logp <> train_logp THEN step END) AS first_step,
         max(CASE WHEN rollout_logp <> train_logp THEN step END) AS last_step
  FROM compared),
worst AS (
  SELECT step AS worst_step, idx AS worst_sample, diff_at AS worst_position, diff AS worst
  FROM compared WHERE rollout_logp <> train_logp
  ORDER BY diff IS NOT NULL, diff DESC, step, idx LIMIT 1)
SELECT samples, CAST(differing AS INTEGER) AS differing, first_step, last_step, worst,
       worst_step, worst_sample, worst_position
FROM gap LEFT JOIN worst WHERE samples > 0;
