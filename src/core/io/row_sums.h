// CRC-32C of each row of a row file, compared with rows in memory, wherever they came from.
//
// Pages are compared when they are read (page_sums.h). What happens to a row afterwards, in a cache, a record
// of a run or a buffer, only a checksum of the row itself can tell.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/parallel.h"
#include "io/rows.h"

namespace outcrop {

// out[i] = CRC-32C of row i.
void sum_rows(WorkerPool& workers, const RowTable& rows, uint32_t* out);

// Rows that are not what they should be: how many, and the least i of them; `first` = rows.num_rows without any.
struct RowMismatch {
  size_t first;
  size_t count = 0;
};

// Row i of `rows` should have the checksum crcs[ids[i]]; an id that no checksum has is a mismatch. ids: one for
// each row.
RowMismatch compare_rows(WorkerPool& workers, const RowTable& rows, const int64_t* ids,
                         std::span<const uint32_t> crcs);

}  // namespace outcrop
