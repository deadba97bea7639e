-- moved-first: Which metrics left their usual band around a step, and in what order?
-- params: :run run, :step integer, :window integer = 50, :margin number = 1
-- SPDX-License-Identifier: Apache-2.0
WITH near AS (
  SELECT step, name, value FROM metrics
  WHERE run = :run AND step BETWEEN :step - 10 - :window AND :step + 5),
band AS (
  SELECT name, min(value) AS usual_low, max(value) AS usual_high
  FROM near WHERE step < :step - 10 GROUP BY name HAVING count(value) > 1)
SELECT min(n.step) AS first_step, name AS metric, b.usual_low, b.usual_high, n.value
FROM near n JOIN band b USING(name)
WHERE n.step >= :step - 10
  AND (n.value IS NULL OR n.value > b.usual_high + :margin * (b.usual_high - b.usual_low)
       OR n.value < b.usual_low - :margin * (b.usual_high - b.usual_low))
GROUP BY name ORDER BY first_step, metric;
