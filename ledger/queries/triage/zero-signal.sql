-- triage-zero-signal: Did whole batches teach nothing, because all rewards of a group were equal?
-- params: :run run, :steps integer = 5
-- means: all rewards equal: nothing is learnt; the judge, its label or the task tells none apart
-- next: ledger query zero-signal --run RUN
-- needs: SELECT count(*) >= 5 FROM metrics WHERE run = :run AND name = 'rollout/zero_std/count'
-- SPDX-License-Identifier: Apache-2.0
WITH scale AS (SELECT max(reward) - min(reward) AS range FROM samples WHERE run = :run),
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
                    :steps, groups, reward) AS evidence
FROM course, scale
WHERE silent AND known = :steps -- a run that has learnt what there is has no signal either
  AND NOT (learnt AND best - least > 0.1 * range AND reward - least > 0.5 * (best - least))
  AND NOT EXISTS (SELECT 1 FROM other)
ORDER BY step;
