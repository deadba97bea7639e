-- unsealed: Which runs have entries that no seal covers?
-- params: none
-- SPDX-License-Identifier: Apache-2.0
SELECT r.run, r.name, (SELECT max(n) + 1 FROM entry e WHERE e.run = r.run) AS entries,
       (SELECT max(entry) FROM seal s WHERE s.run = r.run) AS sealed_entries,
       (SELECT count(*) FROM step s WHERE s.run = r.run AND s.entry >
          coalesce((SELECT max(l.entry) FROM seal l WHERE l.run = r.run), -1)) AS unsealed_steps
FROM run r
WHERE coalesce(sealed_entries + 1, 0) < entries ORDER BY r.run;
