-- nan-birth: Where was the first NaN or infinity born: step, then order of execution?
-- params: :run run, :count integer = 3
-- SPDX-License-Identifier: Apache-2.0
SELECT t.step, t.seg, t.rank, p.name AS point, p.phase, p.layer, p.op, p.kind, t.nans, t.infs,
       t.absmax
FROM stat t
JOIN digest d ON d.run = t.run AND d.step = t.step AND d.seg = t.seg AND d.rank = 0
JOIN point p ON p.manifest = d.manifest AND p.ord = t.ord
WHERE t.run = :run AND (t.nans > 0 OR t.infs > 0)
ORDER BY t.step, t.seg, t.ord, t.rank LIMIT :count;
