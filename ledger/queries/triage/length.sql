-- triage-length: Did responses grow into their limit, or shrink to nothing, for no more reward?
-- params: :run run, :window integer = 10, :factor number = 2
-- means: length pays, or nothing does: look at what the judge rewards, at stop ids and at samples
-- next: ledger query metric-summary --run RUN
-- needs: SELECT count(*) > 9 FROM metrics WHERE run = :run AND name = 'rollout/response_len/mean'
-- or: rollout/response_len/mean of 10 steps
-- needs: SELECT count(*) > 9 FROM metrics WHERE run = :run AND name = 'rollout/truncated_ratio'
-- or: rollout/truncated_ratio of 10 steps
-- needs: SELECT count(*) > 9 FROM metrics WHERE run = :run AND name = 'rollout/raw_reward'
-- or: rollout/raw_reward of 10 steps
-- SPDX-License-Identifier: Apache-2.0
WITH scale AS ( -- of rewards: by samples, or by means, as if 0 were one, where samples are left out
  SELECT coalesce(max(reward) - min(reward),
                  (SELECT max(max(value), 0) - min(min(value), 0) FROM metrics
                   WHERE run = :run AND name = 'rollout/raw_reward')) AS range
  FROM samples WHERE run = :run AND NOT EXISTS (SELECT 1 FROM pruned WHERE run = :run)),
row AS (
  SELECT step, max(CASE WHEN name = 'rollout/response_len/mean' THEN value END) AS tokens,
         max(CASE WHEN name = 'rollout/truncated_ratio' THEN value END) AS cut,
         max(CASE WHEN name = 'rollout/raw_reward' THEN value END) AS reward
  FROM metrics WHERE run = :run GROUP BY step),
smooth AS (
  SELECT step, avg(tokens) OVER here AS tokens, avg(cut) OVER here AS cut,
         avg(reward) OVER here AS reward, count(*) OVER here AS known
  FROM row WHERE tokens IS NOT NULL
  WINDOW here AS (ORDER BY step ROWS BETWEEN :window - 1 PRECEDING AND CURRENT ROW)),
course AS (
  SELECT *, first_value(tokens) OVER past AS tokens_0, first_value(cut) OVER past AS cut_0,
         first_value(reward) OVER past AS reward_0
  FROM smooth WHERE known = :window
  WINDOW past AS (ORDER BY step ROWS UNBOUNDED PRECEDING))
SELECT step, printf('%.4g tokens a response, at first %.4g; %.0f %% cut off, at first %.0f %%; '
       || 'reward %.4g, at first %.4g', tokens, tokens_0, 100 * cut, 100 * cut_0, reward, reward_0)
       AS evidence,
       iif(EXISTS (SELECT 1 FROM samples WHERE run = :run), 'ledger query finish-reasons --run RUN',
           'ledger query metric-summary --run RUN') AS next
FROM course, scale
WHERE reward - reward_0 < 0.1 * range + 1e-9
  AND (tokens > :factor * tokens_0 AND cut > 0.5 AND cut > cut_0 + 0.25
       OR tokens * :factor * 2 < tokens_0)
ORDER BY step;
