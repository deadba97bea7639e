-- triage-reward-collapse: Did the reward rise and then fall again?
-- params: :run run, :window integer = 10, :drop number = 0.2
-- means: what was learnt is lost: lr too high, too little KL, a judge that was fooled
-- next: ledger query metric-jump --run RUN --metric rollout/raw_reward
-- needs: SELECT count(*) > 9 FROM metrics WHERE run = :run AND name = 'rollout/raw_reward'
-- or: rollout/raw_reward of 10 steps
-- SPDX-License-Identifier: Apache-2.0
WITH scale AS ( -- of rewards: by samples, or by means, as if 0 were one, where samples are left out
  SELECT coalesce(max(reward) - min(reward),
                  (SELECT max(max(value), 0) - min(min(value), 0) FROM metrics
                   WHERE run = :run AND name = 'rollout/raw_reward')) AS range
  FROM samples WHERE run = :run AND NOT EXISTS (SELECT 1 FROM pruned WHERE run = :run)),
smooth AS (
  SELECT step, avg(value) OVER here AS mean, count(*) OVER here AS known,
         avg(value * value) OVER here - avg(value) OVER here * avg(value) OVER here AS variance
  FROM metrics WHERE run = :run AND name = 'rollout/raw_reward'
  WINDOW here AS (ORDER BY step ROWS BETWEEN :window - 1 PRECEDING AND CURRENT ROW)),
course AS (
  SELECT *, max(mean) OVER past AS best, min(mean) OVER past AS least, max(variance) OVER past AS
         spread
  FROM smooth WHERE known = :window
  WINDOW past AS (ORDER BY step ROWS UNBOUNDED PRECEDING))
SELECT step, printf('mean of %d steps %.4g; at its best it was %.4g', :window, mean, best)
       AS evidence
FROM course, scale
WHERE best - mean > :drop * range AND best - mean > 0.5 * (best - least)
  AND (best - mean) * (best - mean) * :window > 32 * spread -- more than four standard errors
ORDER BY step;
