-- bisect-report: Which commits did an archived bisect test, what came out, and which changed it?
-- params: :run run
-- needs: SELECT count(*) FROM event WHERE run = :run AND kind LIKE 'bisect-%'
-- or: the run is no answer of a bisect; 'invar bisect' writes answer.db for each
-- SPDX-License-Identifier: Apache-2.0
SELECT row_number() OVER (ORDER BY e.entry, e.i) AS number,
       iif(e.kind = 'bisect-change', 'changed it', e.data ->> 'role') AS role,
       substr(e.data ->> 'commit', 1, 12) AS "commit", e.data ->> 'subject' AS subject,
       e.data ->> 'verdict' AS verdict, coalesce(e.data ->> 'value', e.data ->> 'after') AS value,
       e.data ->> 'via' AS via, e.data ->> 'parted' AS parted,
       e.data ->> '$.place.headline' AS place
FROM event e WHERE e.run = :run AND e.kind IN ('bisect-trial', 'bisect-change')
ORDER BY e.entry, e.i;
