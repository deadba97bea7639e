-- numerics-blame: Which commits changed the bits of a CI case, from which point on?
-- params: :case text, :point text = %, :step integer = 0
-- needs: SELECT count(*) FROM fact WHERE scope = 'ci' AND key = 'case'
-- or: no run of the ledger is a case of CI: it has no fact 'case' of scope 'ci'
-- SPDX-License-Identifier: Apache-2.0
WITH commits AS (
  SELECT r.run, c.value AS "commit", CAST(t.value AS INTEGER) AS commit_time
  FROM run r
  JOIN fact f ON f.run = r.run AND f.seg = 0 AND f.scope = 'ci' AND f.key = 'case'
  JOIN fact c ON c.run = r.run AND c.seg = 0 AND c.scope = 'build' AND c.key = 'commit'
  JOIN fact t ON t.run = r.run AND t.seg = 0 AND t.scope = 'build' AND t.key = 'commit_time'
  JOIN fact d ON d.run = r.run AND d.seg = 0 AND d.scope = 'build' AND d.key = 'dirty'
  WHERE f.value = :case AND d.value = 'clean'),
pair AS (
  SELECT run, "commit", commit_time, lag(run) OVER ordered AS before,
         lag("commit") OVER ordered AS commit_before
  FROM commits WINDOW ordered AS (ORDER BY commit_time, run)),
change AS (
  SELECT p.*, min(x.ord) AS first_ord, x.name AS first_point, count(*) AS differing
  FROM pair p
  JOIN timeline s ON s.run = p.run AND s.step = :step
  JOIN timeline t ON t.run = p.before AND t.step = :step
  JOIN digests x ON x.run = s.run AND x.step = s.step AND x.seg = s.seg AND x.rank = 0
  JOIN digests y ON y.run = t.run AND y.step = t.step AND y.seg = t.seg AND y.rank = 0
                AND y.name = x.name AND y.hash <> x.hash
  WHERE iif(instr(:point, '%'), x.name LIKE replace(:point, '_', '\_') ESCAPE '\',
            x.name = :point)
  GROUP BY p.run)
SELECT "commit", commit_before, n.run, before AS run_before, differing, first_point,
       a.value AS author, j.value AS subject
FROM change n
LEFT JOIN fact a ON a.run = n.run AND a.seg = 0 AND a.scope = 'build' AND a.key = 'author'
LEFT JOIN fact j ON j.run = n.run AND j.seg = 0 AND j.scope = 'build' AND j.key = 'subject'
ORDER BY commit_time, n.run;
