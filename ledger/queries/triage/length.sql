-- triage-length: Did responses grow into their limit, or shrink to nothing, for no more reward?
-- params: :run run, :window integer = 10, :factor number = 2
-- means: length pays, or nothing does: look at what the judge rewards, at stop ids and at samples
-- next: ledger query finish-reasons --run RUN
-- needs: SELECT count(*) >= 10 FROM metrics WHERE run = :run AND name = 'rollout/truncated_ratio'
-- SPDX-License-Identifier: Apache-2.0
WITH scale AS (SELECT max(reward) - min(reward) AS range FROM samples WHERE run = :run),
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
       AS evidence
FROM course, scale
WHERE reward - reward_0 < 0.1 * range
  AND (tokens > :factor * tokens_0 AND cut > 0.5 AND cut > cut_0 + 0.25
       OR tokens * :factor * 2 < tokens_0)
ORDER BY step;
