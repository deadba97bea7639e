-- staleness: How many rollouts old were the weights of a step's samples, and how large was the KL?
-- params: :run run, :bucket integer = 10
-- needs: SELECT count(*) FROM samples WHERE run = :run
-- or: the run has no samples: it has no rollout, or a shortened copy left them out
-- SPDX-License-Identifier: Apache-2.0
WITH key AS (
  SELECT key, CAST(value AS INTEGER) AS value FROM identity WHERE run = :run AND key IN (
    'num-steps-per-rollout', 'global-batch-size', 'rollout-batch-size', 'n-samples-per-prompt')),
named AS (
  SELECT sum(value) FILTER (WHERE key = 'num-steps-per-rollout') AS steps,
         sum(value) FILTER (WHERE key = 'global-batch-size') AS batch,
         sum(value) FILTER (WHERE key = 'rollout-batch-size') AS prompts,
         sum(value) FILTER (WHERE key = 'n-samples-per-prompt') AS per_prompt FROM key),
-- every optimizer step makes a version of the weights; 1 if the run does not record the keys
rollout AS (
  SELECT max(1, coalesce(nullif(steps, 0), prompts * per_prompt / nullif(batch, 0), 1)) AS versions
  FROM named),
kl AS (
  SELECT step / :bucket AS bucket, avg(value) AS ppo_kl FROM metrics
  WHERE run = :run AND name = 'train/ppo_kl' GROUP BY 1)
SELECT s.step / :bucket * :bucket AS from_step,
       min((s.weights - x.weights_last) / versions) AS least_lag,
       max((s.weights - x.weights_first) / versions) AS most_lag,
       avg(s.weights - (x.weights_first + x.weights_last) / 2.0) / versions AS mean_lag,
       sum(x.weights_first <> x.weights_last) AS mixed_samples, count(*) AS samples, ppo_kl
FROM timeline s
CROSS JOIN sample x ON x.run = s.run AND x.step = s.step AND x.seg = s.seg
CROSS JOIN rollout
LEFT JOIN kl ON kl.bucket = s.step / :bucket
WHERE s.run = :run
GROUP BY s.step / :bucket ORDER BY from_step;
