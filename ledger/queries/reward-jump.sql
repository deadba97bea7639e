-- reward-jump: Which prompts' reward and length jumped together (reward hacking)?
-- params: :run run, :step integer, :window integer = 50, :gain number = 0.25, :shift number = 0.25
-- needs: SELECT count(*) FROM samples WHERE run = :run
-- or: the run has no samples: it has no rollout, or a shortened copy left them out
-- SPDX-License-Identifier: Apache-2.0
WITH side AS (
  SELECT prompt, count(CASE WHEN step < :step THEN 1 END) AS before,
         count(CASE WHEN step >= :step THEN 1 END) AS after,
         avg(CASE WHEN step < :step THEN reward END) AS reward_before,
         avg(CASE WHEN step >= :step THEN reward END) AS reward_after,
         avg(CASE WHEN step < :step THEN tokens END) AS tokens_before,
         avg(CASE WHEN step >= :step THEN tokens END) AS tokens_after
  FROM samples
  WHERE run = :run AND step BETWEEN :step - :window AND :step + :window - 1
  GROUP BY prompt)
SELECT prompt, before AS samples_before, after AS samples_after, reward_before, reward_after,
       tokens_before, tokens_after
FROM side
WHERE reward_after - reward_before >= :gain
  AND abs(tokens_after - tokens_before) >= :shift * tokens_before
ORDER BY reward_after - reward_before DESC, prompt;
