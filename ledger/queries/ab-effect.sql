-- ab-effect: What is the effect of side b against side a of an experiment, seed by seed?
-- params: :experiment text, :metric text, :step integer
-- SPDX-License-Identifier: Apache-2.0
WITH side AS MATERIALIZED (
  SELECT r.run, s.value AS seed, d.value AS side
  FROM run r
  JOIN fact e ON e.run = r.run AND e.seg = 0 AND e.scope = 'ab' AND e.key = 'experiment'
  JOIN fact s ON s.run = r.run AND s.seg = 0 AND s.scope = 'ab' AND s.key = 'seed'
  JOIN fact d ON d.run = r.run AND d.seg = 0 AND d.scope = 'ab' AND d.key = 'side'
  WHERE e.value = :experiment),
valued AS MATERIALIZED (
  SELECT seed, side, (SELECT m.value FROM metrics m WHERE m.run = side.run AND m.step = :step
                         AND m.name = :metric) AS value
  FROM side),
pair AS (
  SELECT a.value AS a, b.value AS b, b.value - a.value AS difference
  FROM valued a JOIN valued b ON b.seed = a.seed
  WHERE a.side = 'a' AND b.side = 'b' AND difference IS NOT NULL)
SELECT count(*) AS pairs, avg(a) AS mean_a, avg(b) AS mean_b, avg(difference) AS mean_difference,
       (sum(difference * difference) - count(*) * avg(difference) * avg(difference))
         / (count(*) - 1) AS variance,
       sum(difference > 0) AS b_higher, sum(difference < 0) AS b_lower,
       sum(difference = 0) AS equal
FROM pair HAVING count(*) > 0;
