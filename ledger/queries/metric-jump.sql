-- metric-jump: When did a metric leave the band of the steps before it?
-- params: :run run, :metric text, :window integer = 20, :margin number = 0.5
-- SPDX-License-Identifier: Apache-2.0
WITH banded AS (
  SELECT step, value, min(value) OVER before AS usual_low, max(value) OVER before AS usual_high,
         count(value) OVER before AS known, lag(value) OVER (ORDER BY step) AS last
  FROM metrics WHERE run = :run AND name = :metric
  WINDOW before AS (ORDER BY step ROWS BETWEEN :window PRECEDING AND 1 PRECEDING))
SELECT step, value, usual_low, usual_high FROM banded
WHERE known >= min(:window, 5) -- a short run, and the beginning of a long one, can jump, too
  AND (value IS NULL AND last IS NOT NULL OR value > usual_high + :margin * (usual_high - usual_low)
       OR value < usual_low - :margin * (usual_high - usual_low))
ORDER BY step;
