-- events: Which events of a run match a text and a level?
-- params: :run run, :text text = %, :level text = %
-- SPDX-License-Identifier: Apache-2.0
SELECT e.step, e.seg, e.level, e.kind, e.message, e.data,
       strftime('%Y-%m-%d %H:%M:%S', t.ns / 1000000000, 'unixepoch') AS utc
FROM event e JOIN entry t ON t.run = e.run AND t.n = e.entry
WHERE e.run = :run AND e.message LIKE '%' || replace(:text, '_', '\_') || '%' ESCAPE '\'
  AND iif(instr(:level, '%'), e.level LIKE :level, e.level = :level)
ORDER BY e.entry, e.i;
