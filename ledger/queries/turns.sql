-- turns: How many samples that a plug-in led had each round of turns, and how many ended there?
-- params: :run run
-- needs: SELECT count(*) FROM reply WHERE run = :run
-- or: no plug-in led samples of the run; custom-generate-function-path names one
-- SPDX-License-Identifier: Apache-2.0
WITH said AS (SELECT step, call, list.value AS next
  FROM (SELECT x.step, x.call, CAST(x.data AS TEXT) AS reply
        FROM timeline s JOIN reply x ON x.run = s.run AND x.step = s.step AND x.seg = s.seg
        WHERE s.run = :run)
  JOIN json_each(CASE WHEN json_valid(reply) THEN reply ELSE '{}' END, '$.turns') AS list)
SELECT step, call AS round, count(*) AS samples,
       count(nullif(json_extract(next, '$.end'), 0)) AS ended
FROM said GROUP BY step, call ORDER BY step, call;
