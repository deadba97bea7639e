-- triage-grad-norm: Did the norm of the gradient vanish, jump, or live on clipping?
-- params: :run run, :factor number = 10, :window integer = 20
-- means: 0: nothing is taught, or all is learnt; a jump or clipping: lr, rewards, a bad batch
-- next: ledger query metric-jump --run RUN --metric train/grad_norm
-- needs: SELECT count(*) > 2 FROM metrics WHERE run = :run AND name = 'train/grad_norm'
-- or: train/grad_norm of 3 steps
-- SPDX-License-Identifier: Apache-2.0
WITH scale AS ( -- of rewards: by samples, or by means, as if 0 were one, where samples are left out
  SELECT coalesce(max(reward) - min(reward),
                  (SELECT max(max(value), 0) - min(min(value), 0) FROM metrics
                   WHERE run = :run AND name = 'rollout/raw_reward')) AS range
  FROM samples WHERE run = :run AND NOT EXISTS (SELECT 1 FROM pruned WHERE run = :run)),
reward AS (
  SELECT step, value, max(value) OVER past AS best, min(value) OVER past AS least
  FROM metrics WHERE run = :run AND name = 'rollout/raw_reward'
  WINDOW past AS (ORDER BY step ROWS UNBOUNDED PRECEDING)),
norm AS (
  SELECT m.step, m.value, max(m.value) OVER before AS highest, max(m.value) OVER here AS recent,
         min(m.value) OVER here AS least, count(*) OVER before AS known,
         max(m.value) OVER past > 0 AS learnt, count(*) OVER here AS steps,
         (SELECT CAST(value AS REAL) FROM identity WHERE run = :run AND key = 'clip-grad') AS clip
  FROM metrics m WHERE m.run = :run AND m.name = 'train/grad_norm'
  WINDOW before AS (ORDER BY m.step ROWS BETWEEN :window PRECEDING AND 1 PRECEDING),
         here AS (ORDER BY m.step ROWS BETWEEN :window - 1 PRECEDING AND CURRENT ROW),
         past AS (ORDER BY m.step ROWS UNBOUNDED PRECEDING))
SELECT n.step, CASE
    WHEN n.recent = 0 THEN printf('it is 0 for %d steps', n.steps)
    WHEN n.value > :factor * n.highest
      THEN printf('it is %.3g; in the %d steps before at most %.3g', n.value, n.known, n.highest)
    ELSE printf('for %d steps it is at least %.3g, and cut down to %.3g', n.steps, n.least, n.clip)
  END AS evidence
FROM norm n JOIN scale LEFT JOIN reward r USING(step)
WHERE n.recent = 0 AND n.known >= 2 -- a run that has learnt what there is has no gradient either
      AND NOT (n.learnt AND coalesce(r.best - r.least > 0.1 * range
                                     AND r.value - r.least > 0.5 * (r.best - r.least), 0))
   OR n.known >= 5 AND n.value > :factor * n.highest AND n.value > :factor * coalesce(n.clip, 0)
      AND n.highest > 0
   OR n.known = :window AND n.clip > 0 AND n.least > :factor * n.clip
ORDER BY n.step;
