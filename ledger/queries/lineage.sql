-- lineage: Where does a run come from: forks, resumes, builds, hosts, ends?
-- params: :run run
-- SPDX-License-Identifier: Apache-2.0
WITH RECURSIVE ancestor(depth, run, name, uuid, parent, fork_step) AS (
  SELECT 0, run, name, uuid, parent, fork_step FROM run WHERE run = :run
  UNION ALL
  SELECT depth + 1, r.run, r.name, r.uuid, r.parent, r.fork_step
  FROM ancestor a JOIN run r ON r.uuid = a.parent
  WHERE depth < 1000)
SELECT a.depth, a.run, a.name, g.seg, g.after_step, c.value AS "commit", d.value AS dirty,
       h.value AS host, f.exit_code, f.reason, a.parent, a.fork_step
FROM ancestor a
JOIN segment g ON g.run = a.run
LEFT JOIN fact c ON c.run = g.run AND c.seg = g.seg AND c.scope = 'build' AND c.key = 'commit'
LEFT JOIN fact d ON d.run = g.run AND d.seg = g.seg AND d.scope = 'build' AND d.key = 'dirty'
LEFT JOIN fact h ON h.run = g.run AND h.seg = g.seg AND h.scope = 'host' AND h.key = 'name'
LEFT JOIN finish f ON f.run = g.run AND f.seg = g.seg
ORDER BY a.depth, g.seg;
