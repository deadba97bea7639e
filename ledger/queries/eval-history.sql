-- eval-history: How did evaluations change from one to the next?
-- params: :run run, :dataset text = %
-- SPDX-License-Identifier: Apache-2.0
SELECT e.dataset, n.name AS metric, e.step, e.value,
       e.value - lag(e.value) OVER (PARTITION BY e.dataset, n.name ORDER BY e.step) AS change
FROM evaluation e JOIN series n USING(series)
WHERE e.run = :run AND e.dataset LIKE :dataset AND e.seg =
  (SELECT max(f.seg) FROM evaluation f WHERE f.run = e.run AND f.step = e.step)
ORDER BY e.dataset, metric, e.step;
