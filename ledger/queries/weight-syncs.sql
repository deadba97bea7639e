-- weight-syncs: When did ranks that only sample get new weights, how long did it take?
-- params: :run run
-- needs: SELECT count(*) FROM event WHERE run = :run AND kind = 'weight-sync'
-- or: no rank of the run only samples, so none is sent weights
-- SPDX-License-Identifier: Apache-2.0
SELECT step, seg, data ->> 'weights' AS weights, (data ->> 'bytes') / 1e6 AS mb,
       data ->> 'seconds' AS seconds,
       (data ->> 'bytes') / nullif((data ->> 'seconds') * 1e6, 0) AS mb_s, data ->> 'hash' AS hash
FROM event WHERE run = :run AND kind = 'weight-sync' ORDER BY entry, i;
