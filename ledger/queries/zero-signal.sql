-- zero-signal: How many prompts taught nothing, because all their samples got the same reward?
-- params: :run run, :bucket integer = 10
-- needs: SELECT count(*) FROM samples WHERE run = :run
-- or: the run has no samples: it has no rollout, or a shortened copy left them out
-- needs: SELECT NOT count(*) FROM identity WHERE run = :run AND key = 'loss-type'
--   AND value = 'sft_loss'
-- or: the run has no rewards: it learned answers (sft_loss)
-- SPDX-License-Identifier: Apache-2.0
WITH prompts AS (
  SELECT step, prompt, min(reward_bits) = max(reward_bits) AS equal, max(reward) AS reward
  FROM samples WHERE run = :run AND NOT EXISTS (
    SELECT 1 FROM identity WHERE run = :run AND key = 'loss-type' AND value = 'sft_loss')
  GROUP BY step, prompt)
SELECT step / :bucket * :bucket AS from_step, count(*) AS groups, sum(equal) AS without_signal,
       sum(equal AND reward > 0) AS all_rewarded, avg(equal) AS share
FROM prompts
GROUP BY from_step ORDER BY from_step;
