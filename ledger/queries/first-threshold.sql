-- first-threshold: When did a metric first exceed a limit or become NaN, and what came before?
-- params: :run run, :metric text, :limit number, :window integer = 20
-- SPDX-License-Identifier: Apache-2.0
WITH hit AS (
  SELECT step, value FROM metrics
  WHERE run = :run AND name = :metric AND (value > :limit OR value IS NULL)
  ORDER BY step LIMIT 1)
SELECT step, 'threshold' AS what, printf('%s = %s', :metric, coalesce(value, 'NaN')) AS detail
FROM hit
UNION ALL
SELECT e.step, 'event', printf('%s %s: %s', e.level, e.kind, e.message)
FROM hit JOIN event e ON e.run = :run AND e.step BETWEEN hit.step - :window AND hit.step
UNION ALL
SELECT g.after_step + 1, 'resume', printf('segment %d after step %d', g.seg, g.after_step)
FROM hit JOIN segment g ON g.run = :run AND g.seg > 0
 AND g.after_step + 1 BETWEEN hit.step - :window AND hit.step
ORDER BY step, what, detail;
