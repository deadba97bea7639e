-- frozen-weights: Which weights did a step leave unchanged?
-- params: :run run
-- needs: SELECT count(*) FROM point WHERE kind = 'param'
--   AND manifest IN (SELECT manifest FROM digest WHERE run = :run)
-- or: the run has no step with weights among its points
-- SPDX-License-Identifier: Apache-2.0
WITH weights AS MATERIALIZED (SELECT * FROM point WHERE kind = 'param')
SELECT min(s.step) AS first_step, count(*) AS steps, p.name AS point, p.layer
FROM timeline s
JOIN timeline b ON b.run = s.run AND b.step = s.step - 1
JOIN digest x ON x.run = s.run AND x.step = s.step AND x.seg = s.seg AND x.rank = 0
JOIN digest y ON y.run = b.run AND y.step = b.step AND y.seg = b.seg AND y.rank = 0
             AND y.manifest = x.manifest
JOIN weights p ON p.manifest = x.manifest
WHERE s.run = :run
  AND substr(x.data, 1 + 16 * p.ord, 16) = substr(y.data, 1 + 16 * p.ord, 16)
GROUP BY p.name ORDER BY first_step, p.ord;
