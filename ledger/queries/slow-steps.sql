-- slow-steps: Which phases took much longer than their own median, and when?
-- params: :run run, :factor number = 3, :count integer = 20
-- needs: SELECT count(*) FROM timing WHERE run = :run
-- or: the run has no times of phases
-- SPDX-License-Identifier: Apache-2.0
WITH ranked AS (
  SELECT phase, duration_ns, count(*) OVER (PARTITION BY phase) AS steps,
         row_number() OVER (PARTITION BY phase ORDER BY duration_ns) AS place
  FROM timing WHERE run = :run),
median AS MATERIALIZED (
  SELECT phase, duration_ns AS median_ns FROM ranked WHERE place = (steps + 1) / 2)
SELECT t.step, t.seg, t.phase, t.duration_ns / 1e6 AS ms, m.median_ns / 1e6 AS median_ms,
       1.0 * t.duration_ns / m.median_ns AS times_median
FROM timing t JOIN median m USING(phase)
WHERE t.run = :run AND t.duration_ns > :factor * m.median_ns
ORDER BY times_median DESC, t.step, t.seg, t.phase LIMIT :count;
