-- triage-zero-signal: Did whole batches teach nothing, because all rewards of a group were equal?
-- params: :run run, :steps integer = 5
-- means: all rewards equal: nothing is learnt; the judge, its label or the task tells none apart
-- next: ledger query metric-summary --run RUN
-- needs: SELECT count(*) > 4 FROM metrics WHERE run = :run AND name = 'rollout/zero_std/count'
-- or: rollout/zero_std/count of 5 steps
-- needs: SELECT count(*) > 4 FROM metrics WHERE run = :run AND name = 'rollout/raw_reward'
-- or: rollout/raw_reward of 5 steps
-- needs: SELECT count(*) FROM identity WHERE run = :run AND key = 'rollout-batch-size'
-- or: the key rollout-batch-size: how many groups a step has
-- SPDX-License-Identifier: Apache-2.0
WITH scale AS ( -- of rewards: by samples, or by means, as if 0 were one, where samples are left out
  SELECT coalesce(max(reward) - min(reward),
                  (SELECT max(max(value), 0) - min(min(value), 0) FROM metrics
                   WHERE run = :run AND name = 'rollout/raw_reward')) AS range
  FROM samples WHERE run = :run AND NOT EXISTS (SELECT 1 FROM pruned WHERE run = :run)),
batch AS (
  SELECT m.step, m.value AS without, (SELECT value FROM metrics r WHERE r.run = :run
           AND r.step = m.step AND r.name = 'rollout/raw_reward') AS reward,
         (SELECT CAST(value AS REAL) FROM identity WHERE run = :run
           AND key = 'rollout-batch-size') AS groups
  FROM metrics m WHERE m.run = :run AND m.name = 'rollout/zero_std/count'),
other AS ( -- what learns by something else than a reward against those of its group
  SELECT 1 FROM identity WHERE run = :run
    AND (key = 'advantage-estimator' AND value NOT IN ('grpo', 'gspo',
         'reinforce_plus_plus_baseline')
         OR key = 'n-samples-per-prompt' AND value = '1' OR key = 'loss-type' AND value = 'sft_loss'
         OR key = 'disable-rewards-normalization' AND value = 'true'
         OR key = 'use-opd' AND value = 'true')),
course AS (
  SELECT step, groups, reward, min(without) OVER here >= groups AS silent, count(*) OVER here AS
         known, min(without) OVER past < groups AS learnt, max(reward) OVER past AS best,
         min(reward) OVER past AS least
  FROM batch
  WINDOW here AS (ORDER BY step ROWS BETWEEN :steps - 1 PRECEDING AND CURRENT ROW),
         past AS (ORDER BY step ROWS UNBOUNDED PRECEDING))
SELECT step, printf('for %d steps each of the %d groups had one reward; the mean is %.4g',
                    :steps, groups, reward) AS evidence,
       iif(EXISTS (SELECT 1 FROM samples WHERE run = :run), 'ledger query zero-signal --run RUN',
           'ledger query metric-summary --run RUN') AS next
FROM course, scale
WHERE silent AND known = :steps -- a run that has learnt what there is has no signal either
  AND NOT (learnt AND best - least > 0.1 * range AND reward - least > 0.5 * (best - least))
  AND NOT EXISTS (SELECT 1 FROM other)
ORDER BY step;
