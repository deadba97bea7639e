-- time-share: Where did the time go: seconds and share of every phase?
-- params: :run run
-- needs: SELECT count(*) FROM timing WHERE run = :run
-- or: the run has no times of phases
-- SPDX-License-Identifier: Apache-2.0
SELECT phase, count(*) AS steps, sum(duration_ns) / 1e9 AS seconds,
       avg(duration_ns) / 1e6 AS mean_ms, max(duration_ns) / 1e6 AS longest_ms,
       sum(duration_ns) * 1.0 / sum(sum(duration_ns)) OVER () AS share
FROM timing WHERE run = :run
GROUP BY phase ORDER BY seconds DESC, phase;
