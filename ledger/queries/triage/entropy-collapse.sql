-- triage-entropy-collapse: Did the policy become certain without having become better?
-- params: :run run, :window integer = 10, :share number = 0.05
-- means: samples are all alike, so nothing is explored: lr too high, no entropy or KL term
-- next: ledger query metric-summary --run RUN
-- needs: SELECT count(*) > 9 FROM metrics WHERE run = :run AND name = 'train/entropy'
-- or: train/entropy of 10 steps
-- needs: SELECT count(*) > 9 FROM metrics WHERE run = :run AND name = 'rollout/raw_reward'
-- or: rollout/raw_reward of 10 steps
-- SPDX-License-Identifier: Apache-2.0
WITH scale AS ( -- of rewards: by samples, or by means, as if 0 were one, where samples are left out
  SELECT coalesce(max(reward) - min(reward),
                  (SELECT max(max(value), 0) - min(min(value), 0) FROM metrics
                   WHERE run = :run AND name = 'rollout/raw_reward')) AS range
  FROM samples WHERE run = :run AND NOT EXISTS (SELECT 1 FROM pruned WHERE run = :run)),
row AS (
  SELECT step, max(CASE WHEN name = 'train/entropy' THEN value END) AS entropy,
         max(CASE WHEN name = 'rollout/raw_reward' THEN value END) AS reward
  FROM metrics WHERE run = :run GROUP BY step),
smooth AS (
  SELECT step, avg(entropy) OVER here AS entropy, avg(reward) OVER here AS reward,
         count(*) OVER here AS known, max(entropy) OVER past AS highest
  FROM row WHERE entropy IS NOT NULL
  WINDOW here AS (ORDER BY step ROWS BETWEEN :window - 1 PRECEDING AND CURRENT ROW),
         past AS (ORDER BY step ROWS UNBOUNDED PRECEDING)),
course AS (
  SELECT *, first_value(reward) OVER (ORDER BY step) AS reward_0 FROM smooth WHERE known = :window)
SELECT step, printf('entropy %.3g, at most it was %.3g; reward %.4g, at first %.4g', entropy,
                    highest, reward, reward_0) AS evidence
FROM course, scale
WHERE NOT EXISTS (SELECT 1 FROM identity WHERE run = :run -- others than a reward teach
                    AND (key = 'use-opd' AND value = 'true' OR key = 'loss-type'
                         AND value = 'sft_loss'))
  AND entropy < :share * highest AND reward - reward_0 < 0.1 * range + 1e-9
ORDER BY step;
