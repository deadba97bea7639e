-- worst-tokens: Which tokens have the largest log-prob differences between rollout and training?
-- params: :run run, :count integer = 10
-- needs: SELECT count(*) FROM samples WHERE run = :run AND diff IS NOT NULL AND NOT EXISTS (
--   SELECT 1 FROM identity WHERE run = :run AND key = 'loss-type' AND value = 'sft_loss')
-- or: the run has no samples whose log-probs training has computed again
-- SPDX-License-Identifier: Apache-2.0
SELECT diff AS difference, step, idx AS sample, diff_at AS position, prompt, weights_first,
       weights_last, tokens
FROM samples
WHERE run = :run AND diff_at >= 0 AND NOT EXISTS (
    SELECT 1 FROM identity WHERE run = :run AND key = 'loss-type' AND value = 'sft_loss')
ORDER BY diff IS NOT NULL, diff DESC, step, idx LIMIT :count;
