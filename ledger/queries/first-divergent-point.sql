-- first-divergent-point: Which point differs first although its inputs are equal?
-- params: :a run, :b run, :count integer = 5
-- needs: SELECT count(*) FROM step s JOIN step t USING(step) WHERE s.run = :a AND t.run = :b
-- or: the runs have no step in common
-- SPDX-License-Identifier: Apache-2.0
WITH pair AS (
  SELECT x.step, x.seg AS seg_a, y.seg AS seg_b
  FROM timeline x JOIN timeline y ON y.step = x.step
  WHERE x.run = :a AND y.run = :b AND x.root <> y.root),
born AS ( -- roots also differ when runs have other points, so a named one must differ
  SELECT step, seg_a, seg_b FROM pair
  WHERE EXISTS (
    SELECT 1 FROM digests x JOIN digests y ON y.name = x.name AND y.hash <> x.hash
    WHERE x.run = :a AND x.step = pair.step AND x.seg = seg_a AND x.rank = 0
      AND y.run = :b AND y.step = pair.step AND y.seg = seg_b AND y.rank = 0)
  ORDER BY step LIMIT 1),
point_pair AS MATERIALIZED (
  SELECT x.*, x.hash AS hash_a,
         (SELECT y.hash FROM digests y WHERE y.run = :b AND y.step = born.step
             AND y.seg = seg_b AND y.rank = 0 AND y.name = x.name) AS hash_b
  FROM born
  JOIN digests x ON x.run = :a AND x.step = born.step AND x.seg = seg_a AND x.rank = 0)
SELECT p.step, p.name AS point, p.phase, p.layer, p.op, p.kind, p.level,
       count(i.ord) AS inputs, total(i.hash_a = i.hash_b) = count(i.ord) AS inputs_equal,
       p.hash_a, p.hash_b
FROM point_pair p
LEFT JOIN point_pair i ON i.ord < p.ord
  AND instr(',' || trim(p.inputs, '[]') || ',', ',' || i.ord || ',') > 0
WHERE p.hash_a <> p.hash_b
GROUP BY p.ord ORDER BY inputs_equal DESC, p.ord LIMIT :count;
