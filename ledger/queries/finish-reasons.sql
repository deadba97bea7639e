-- finish-reasons: How did samples end: stopped, cut off at the length limit, aborted?
-- params: :run run, :bucket integer = 10
-- needs: SELECT count(*) FROM samples WHERE run = :run
-- or: the run has no samples: it has no rollout, or a shortened copy left them out
-- SPDX-License-Identifier: Apache-2.0
SELECT step / :bucket * :bucket AS from_step, finish, count(*) AS samples,
       avg(tokens) AS mean_tokens, avg(reward) AS mean_reward
FROM samples WHERE run = :run
GROUP BY from_step, finish ORDER BY from_step, finish;
