-- eval-history: How did evaluations change from one to the next?
-- params: :run run, :dataset text = %
-- needs: SELECT count(*) FROM evaluation WHERE run = :run
-- or: the run has no evaluation; eval-interval makes some
-- SPDX-License-Identifier: Apache-2.0
SELECT e.dataset, n.name AS metric, e.step, e.value,
       e.value - lag(e.value) OVER (PARTITION BY e.dataset, n.name ORDER BY e.step) AS change
FROM evaluation e JOIN series n USING(series)
WHERE e.run = :run AND iif(instr(:dataset, '%'),
    e.dataset LIKE replace(:dataset, '_', '\_') ESCAPE '\', e.dataset = :dataset)
  AND e.seg = (SELECT max(f.seg) FROM evaluation f WHERE f.run = e.run AND f.step = e.step)
ORDER BY e.dataset, metric, e.step;
