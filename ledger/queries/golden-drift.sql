-- golden-drift: At which archived check was a golden another one than at the check before?
-- params: :case text = %
-- needs: SELECT count(*) FROM event WHERE kind = 'ci-case'
-- or: the ledger has no check; 'invar ci check --archive LEDGER' appends one
-- SPDX-License-Identifier: Apache-2.0
WITH checked AS (
  SELECT t.ns, e.run, e.i, e.data ->> 'case' AS name, e.data ->> 'recipe' AS recipe,
         e.data ->> 'verdict' AS verdict, e.data ->> 'golden_hash' AS hash,
         e.data ->> 'commit' AS "commit", e.data ->> 'dirty' AS dirty
  FROM event e JOIN entry t ON t.run = e.run AND t.n = e.entry
  WHERE e.kind = 'ci-case' AND iif(instr(:case, '%'),
    e.data ->> 'case' LIKE replace(:case, '_', '\_') ESCAPE '\', e.data ->> 'case' = :case)),
beside AS (
  SELECT *, lag(hash) OVER past AS was, lag(run) OVER past AS before,
         lag("commit") OVER past AS commit_before
  FROM checked
  WINDOW past AS (PARTITION BY coalesce(recipe, name) ORDER BY ns, run, i))
SELECT strftime('%Y-%m-%d %H:%M:%S', ns / 1000000000, 'unixepoch') AS utc, name AS "case", recipe,
       was, hash AS "is", verdict, commit_before, "commit", dirty
FROM beside WHERE before IS NOT NULL AND hash IS NOT was
ORDER BY ns, run, i;
