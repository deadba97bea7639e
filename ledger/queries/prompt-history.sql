-- prompt-history: How did the samples of one prompt change over the run?
-- params: :run run, :prompt integer
-- needs: SELECT count(*) FROM samples WHERE run = :run
-- or: the run has no samples: it has no rollout, or a shortened copy left them out
-- SPDX-License-Identifier: Apache-2.0
SELECT step, count(*) AS samples, avg(reward) AS mean_reward, min(reward) AS lowest_reward,
       max(reward) AS highest_reward, avg(tokens) AS mean_tokens,
       sum(finish = 'length') AS truncated, max(diff) AS largest_difference
FROM samples
WHERE run = :run AND prompt = :prompt
GROUP BY step ORDER BY step;
