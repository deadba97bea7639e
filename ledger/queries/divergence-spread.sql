-- divergence-spread: How did a difference between two runs spread over phases and steps?
-- params: :a run, :b run, :steps integer = 3
-- needs: SELECT count(*) FROM step s JOIN step t USING(step) WHERE s.run = :a AND t.run = :b
-- or: the runs have no step in common
-- SPDX-License-Identifier: Apache-2.0
WITH pair AS (
  SELECT x.step, x.seg AS seg_a, y.seg AS seg_b, x.root <> y.root AS differs
  FROM timeline x JOIN timeline y ON y.step = x.step
  WHERE x.run = :a AND y.run = :b),
late AS MATERIALIZED (
  SELECT * FROM pair WHERE step >= (SELECT min(step) FROM pair WHERE differs)
  ORDER BY step LIMIT :steps)
SELECT x.step, x.phase, sum(x.hash <> y.hash) AS differing, count(*) AS compared,
       min(CASE WHEN x.hash <> y.hash THEN x.ord END) AS first_ord
FROM late
CROSS JOIN digests x ON x.run = :a AND x.step = late.step AND x.seg = seg_a AND x.rank = 0
CROSS JOIN digests y ON y.run = :b AND y.step = late.step AND y.seg = seg_b AND y.rank = 0
                    AND y.name = x.name
GROUP BY x.step, x.phase ORDER BY x.step, min(x.ord);
