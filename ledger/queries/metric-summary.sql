-- metric-summary: How did every metric begin, end and range, and how often was it NaN?
-- params: :run run
-- needs: SELECT count(*) FROM step WHERE run = :run
-- or: the run has no step yet
-- SPDX-License-Identifier: Apache-2.0
WITH whole AS (
  SELECT m.series, count(*) AS steps, sum(m.value IS NULL) AS nans, min(m.value) AS lowest,
         max(m.value) AS highest, avg(m.value) AS mean, min(s.step) AS first_step,
         max(s.step) AS last_step
  FROM timeline s
  CROSS JOIN metric m ON m.run = s.run AND m.step = s.step AND m.seg = s.seg
  WHERE s.run = :run AND (NOT EXISTS (
      SELECT 1 FROM identity WHERE run = :run AND key = 'loss-type' AND value = 'sft_loss')
    -- SFT runs of version 0.1.0 recorded zeros for what was never measured
    OR m.series NOT IN (SELECT series FROM series WHERE name GLOB 'train/logp_diff_*'
      OR name GLOB 'rollout/zero_std/*' OR name IN ('rollout/raw_reward', 'rollout/advantages',
        'rollout/rollout_log_probs', 'rollout/dynamic_filter/dropped')))
  GROUP BY m.series)
SELECT n.name AS metric, w.steps, w.nans, w.lowest, w.highest, w.mean,
       (SELECT m.value FROM metric m WHERE m.run = :run AND m.step = w.first_step
           AND m.series = w.series ORDER BY m.seg DESC LIMIT 1) AS first,
       (SELECT m.value FROM metric m WHERE m.run = :run AND m.step = w.last_step
           AND m.series = w.series ORDER BY m.seg DESC LIMIT 1) AS last
FROM whole w JOIN series n ON n.series = w.series
ORDER BY metric;
