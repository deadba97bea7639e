-- ci-history: What did every archived check say of each case, by which commit, and when?
-- params: :case text = %
-- needs: SELECT count(*) FROM event WHERE kind = 'ci-case'
-- or: the ledger has no check; 'invar ci check --archive LEDGER' appends one
-- SPDX-License-Identifier: Apache-2.0
-- The commit is that of the program which ran; the one that compared may be another.
SELECT strftime('%Y-%m-%d %H:%M:%S', t.ns / 1000000000, 'unixepoch') AS utc, r.uuid AS run,
       e.data ->> 'commit' AS "commit", e.data ->> 'dirty' AS dirty,
       e.data ->> 'case' AS "case", e.data ->> 'recipe' AS recipe, e.data ->> 'verdict' AS verdict,
       e.data ->> 'compared' AS steps, e.data ->> 'first' AS first,
       e.data ->> 'seconds' AS seconds,
       (SELECT value FROM fact f WHERE f.run = r.run AND f.scope = 'build' AND f.key = 'commit')
         AS compared_by
FROM event e JOIN run r USING(run) JOIN entry t ON t.run = e.run AND t.n = e.entry
WHERE e.kind = 'ci-case' AND iif(instr(:case, '%'),
  e.data ->> 'case' LIKE replace(:case, '_', '\_') ESCAPE '\', e.data ->> 'case' = :case)
ORDER BY t.ns, e.run, e.i;
