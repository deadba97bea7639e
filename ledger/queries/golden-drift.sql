-- golden-drift: At which archived check was a golden another one than at the check before?
-- params: :case text = %
-- needs: SELECT count(*) FROM event WHERE kind = 'ci-case'
-- or: the ledger has no check; 'invar ci check --archive LEDGER' appends one
-- SPDX-License-Identifier: Apache-2.0
WITH checked AS (
  SELECT t.ns, e.run, e.i, e.data ->> 'case' AS name, e.data ->> 'verdict' AS verdict,
         e.data ->> 'golden_hash' AS hash
  FROM event e JOIN entry t ON t.run = e.run AND t.n = e.entry
  WHERE e.kind = 'ci-case' AND iif(instr(:case, '%'),
    e.data ->> 'case' LIKE replace(:case, '_', '\_') ESCAPE '\', e.data ->> 'case' = :case)),
beside AS (
  SELECT *, lag(hash) OVER past AS was, lag(run) OVER past AS before FROM checked
  WINDOW past AS (PARTITION BY name ORDER BY ns, run, i))
SELECT strftime('%Y-%m-%d %H:%M:%S', b.ns / 1000000000, 'unixepoch') AS utc, b.name AS "case",
       b.was, b.hash AS "is", b.verdict,
       (SELECT value FROM fact f WHERE f.run = b.before AND f.scope = 'build'
          AND f.key = 'commit') AS commit_before,
       (SELECT value FROM fact f WHERE f.run = b.run AND f.scope = 'build' AND f.key = 'commit')
         AS "commit"
FROM beside b WHERE b.before IS NOT NULL AND b.hash IS NOT b.was
ORDER BY b.ns, b.run, b.i;
