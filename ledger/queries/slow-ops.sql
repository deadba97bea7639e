-- slow-ops: Which ops took the time of the profiled steps?
-- params: :run run, :most integer = 40
-- needs: SELECT count(*) FROM op_times WHERE run = :run
-- or: the run has no profiled step; profile-step-start and profile-step-end choose some
-- SPDX-License-Identifier: Apache-2.0
-- The share is that of all ops and copies of the phase.
WITH each AS (
  SELECT phase, op, count(DISTINCT step) AS steps, count(DISTINCT rank) AS ranks,
         CAST(total(calls) AS INTEGER) AS calls, total(duration_ns) AS spent_ns,
         max(longest_ns) AS longest_ns
  FROM op_times WHERE run = :run GROUP BY phase, op)
SELECT phase, op, steps, ranks, calls, spent_ns / 1e9 AS spent_s,
       spent_ns / nullif(total(spent_ns) OVER (PARTITION BY phase), 0) AS share,
       spent_ns / calls / 1e3 AS mean_us, longest_ns / 1e3 AS longest_us
FROM each ORDER BY spent_ns DESC, phase, op LIMIT :most;
