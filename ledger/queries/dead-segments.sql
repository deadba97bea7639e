-- dead-segments: Which segments have no orderly end: killed, or still running?
-- params: none
-- SPDX-License-Identifier: Apache-2.0
WITH done AS (SELECT run, seg, max(step) AS last_step FROM step GROUP BY run, seg),
segments AS (
  SELECT *, lead(entry) OVER (PARTITION BY run ORDER BY seg) AS next_entry FROM segment)
SELECT g.run, r.name, g.seg, g.after_step, d.last_step, g.next_entry IS NOT NULL AS resumed,
       strftime('%Y-%m-%d %H:%M:%S', e.ns / 1000000000, 'unixepoch') AS last_seen_utc
FROM segments g
JOIN run r USING(run)
JOIN entry e ON e.run = g.run AND e.n =
  coalesce(g.next_entry - 1, (SELECT max(n) FROM entry l WHERE l.run = g.run))
LEFT JOIN done d ON d.run = g.run AND d.seg = g.seg
LEFT JOIN finish f ON f.run = g.run AND f.seg = g.seg
WHERE f.run IS NULL ORDER BY g.run, g.seg;
