-- slow-ranks: Which rank do the others wait for: how long did each compute and wait?
-- params: :run run, :margin number = 0.1
-- needs: SELECT count(*) FROM work WHERE run = :run
-- or: the run was trained by one rank, so none waited for another; --ranks N
-- SPDX-License-Identifier: Apache-2.0
-- Longer: than the mean of the others in the same step, for a run may go on with other ranks; of
-- the others that train, or that do not, for those that only sample wait while these train.
WITH trains AS MATERIALIZED (
  SELECT DISTINCT step, seg, rank FROM work WHERE run = :run AND phase = 'train'),
each AS MATERIALIZED (
  SELECT r.rank, host, computed_ns, waited_ns, sent, received,
         computed_ns = max(computed_ns) OVER (PARTITION BY r.step) AS slowest,
         computed_ns - (total(computed_ns) OVER side - computed_ns) /
           nullif(count(*) OVER side - 1, 0) AS longer_ns
  FROM ranks r LEFT JOIN trains t ON t.step = r.step AND t.seg = r.seg AND t.rank = r.rank
  WHERE run = :run
  WINDOW side AS (PARTITION BY r.step, t.rank IS NULL)),
every AS (
  SELECT rank, min(host) AS host, count(*) AS steps, total(computed_ns) / 1e9 AS computing_s,
         total(waited_ns) / 1e9 AS waiting_s, total(longer_ns) / 1e9 AS longer_s,
         sum(slowest) AS slowest_in, total(sent) / 1e6 AS sent_mb,
         total(received) / 1e6 AS received_mb
  FROM each GROUP BY rank)
SELECT rank, host, steps, computing_s, waiting_s,
       computing_s / nullif(computing_s + waiting_s, 0) AS share, slowest_in, sent_mb, received_mb,
       CASE WHEN longer_s = max(longer_s) OVER () AND
                 longer_s > :margin * (computing_s + waiting_s)
            THEN 'straggler' ELSE '' END AS verdict
FROM every ORDER BY computing_s DESC, rank;
