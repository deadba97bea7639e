-- rank-moves: What did ranks move in each phase, and how long did they wait for it?
-- params: :run run
-- needs: SELECT count(*) FROM work WHERE run = :run
-- or: the run was trained by one rank, so none waited for another; --ranks N
-- SPDX-License-Identifier: Apache-2.0
SELECT phase, move, count(DISTINCT rank) AS ranks, CAST(total(calls) AS INTEGER) AS calls,
       total(sent) / 1e6 AS sent_mb, total(received) / 1e6 AS received_mb,
       total(duration_ns) / 1e9 AS waiting_s, max(duration_ns) / 1e6 AS longest_ms
FROM work w
WHERE run = :run AND move <> ''
  AND seg = (SELECT max(t.seg) FROM step t WHERE t.run = w.run AND t.step = w.step)
GROUP BY phase, move ORDER BY waiting_s DESC, phase, move;
