-- metric-divergence: Which metrics differ in their bits between two runs, and since which step?
-- params: :a run, :b run
-- needs: SELECT count(*) FROM step s JOIN step t USING(step) WHERE s.run = :a AND t.run = :b
-- or: the runs have no step in common
-- SPDX-License-Identifier: Apache-2.0
SELECT min(s.step) AS first_step, n.name AS metric, count(*) AS differing_steps,
       max(abs(x.value - y.value)) AS largest_difference
FROM timeline s
CROSS JOIN timeline t ON t.run = :b AND t.step = s.step
CROSS JOIN metric x ON x.run = s.run AND x.step = s.step AND x.seg = s.seg
CROSS JOIN metric y ON y.run = t.run AND y.step = t.step AND y.seg = t.seg AND y.series = x.series
JOIN series n ON n.series = x.series
WHERE s.run = :a AND x.value_bits <> y.value_bits
GROUP BY x.series ORDER BY first_step, metric;
