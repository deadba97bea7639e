-- staleness: How old were the weights that sampled a step's batch, and how large was the KL?
-- params: :run run, :bucket integer = 10
-- needs: SELECT count(*) FROM samples WHERE run = :run
-- or: the run has no samples: it has no rollout, or a shortened copy left them out
-- SPDX-License-Identifier: Apache-2.0
WITH kl AS (
  SELECT step / :bucket AS bucket, avg(value) AS ppo_kl FROM metrics
  WHERE run = :run AND name = 'train/ppo_kl' GROUP BY 1)
SELECT bucket * :bucket AS from_step, min(s.weights - x.weights_last) AS least_lag,
       max(s.weights - x.weights_first) AS most_lag,
       avg(s.weights - (x.weights_first + x.weights_last) / 2.0) AS mean_lag,
       sum(x.weights_first <> x.weights_last) AS mixed_samples, count(*) AS samples, ppo_kl
FROM timeline s
CROSS JOIN sample x ON x.run = s.run AND x.step = s.step AND x.seg = s.seg
LEFT JOIN kl ON kl.bucket = s.step / :bucket
WHERE s.run = :run
GROUP BY s.step / :bucket ORDER BY from_step;
