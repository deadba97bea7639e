-- dirty-runs: Which segments ran a build that is not exactly a commit, and is its diff recorded?
-- params: none
-- SPDX-License-Identifier: Apache-2.0
SELECT g.run, r.name, g.seg, coalesce(d.value, 'unknown') AS dirty, c.value AS "commit",
       f.value AS diff, length(o.data) AS diff_bytes
FROM segment g
JOIN run r USING(run)
LEFT JOIN fact d ON d.run = g.run AND d.seg = g.seg AND d.scope = 'build' AND d.key = 'dirty'
LEFT JOIN fact c ON c.run = g.run AND c.seg = g.seg AND c.scope = 'build' AND c.key = 'commit'
LEFT JOIN fact f ON f.run = g.run AND f.seg = g.seg AND f.scope = 'build' AND f.key = 'diff'
LEFT JOIN object o ON o.run = g.run AND lower(hex(o.hash)) = f.value
WHERE d.value IS NOT 'clean' ORDER BY g.run, g.seg;
