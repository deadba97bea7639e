-- slow-ranks: Which rank do the others wait for: how long did each compute and wait?
-- params: :run run, :margin number = 0.1
-- SPDX-License-Identifier: Apache-2.0
WITH each AS MATERIALIZED (
  SELECT rank, host, computed_ns, waited_ns, sent, received,
         computed_ns = max(computed_ns) OVER (PARTITION BY step) AS slowest
  FROM ranks WHERE run = :run),
every AS (
  SELECT rank, min(host) AS host, count(*) AS steps, total(computed_ns) / 1e9 AS computing_s,
         total(waited_ns) / 1e9 AS waiting_s, sum(slowest) AS slowest_in,
         total(sent) / 1e6 AS sent_mb, total(received) / 1e6 AS received_mb
  FROM each GROUP BY rank)
SELECT rank, host, steps, computing_s, waiting_s,
       computing_s / nullif(computing_s + waiting_s, 0) AS share, slowest_in, sent_mb, received_mb,
       CASE WHEN computing_s = max(computing_s) OVER () AND
                 computing_s - (sum(computing_s) OVER () - computing_s) /
                   nullif(count(*) OVER () - 1, 0) > :margin * (computing_s + waiting_s)
            THEN 'straggler' ELSE '' END AS verdict
FROM every ORDER BY computing_s DESC, rank;
