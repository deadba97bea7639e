-- nan-birth: Where was the first NaN or infinity born: step, then order of execution?
-- params: :run run, :count integer = 3
-- needs: SELECT count(*) FROM stat WHERE run = :run
-- or: no tensor was looked at; train with --debug-stats true --debug-determinism full
-- SPDX-License-Identifier: Apache-2.0
WITH odd AS (
  SELECT t.step, t.seg, t.rank, t.ord, p.name AS point, p.phase, p.layer, p.op, p.kind, t.nans,
         t.infs, t.absmax
  FROM stat t
  JOIN digest d ON d.run = t.run AND d.step = t.step AND d.seg = t.seg AND d.rank = 0
  JOIN point p ON p.manifest = d.manifest AND p.ord = t.ord
  WHERE t.run = :run AND (t.nans > 0 OR t.infs > 0)
  UNION ALL -- a step that failed has no digests: its first odd point is an event
  SELECT e.step, e.seg, 0, json_extract(e.data, '$.ord'), json_extract(e.data, '$.point'),
         json_extract(e.data, '$.phase'), nullif(json_extract(e.data, '$.layer'), -1),
         json_extract(e.data, '$.op'), json_extract(e.data, '$.kind'),
         json_extract(e.data, '$.nans'), json_extract(e.data, '$.infs'),
         json_extract(e.data, '$.absmax')
  FROM event e WHERE e.run = :run AND e.kind = 'not-finite' AND json_valid(e.data))
SELECT step, seg, rank, point, phase, layer, op, kind, nans, infs, absmax
FROM odd ORDER BY step, seg, ord, rank LIMIT :count;
