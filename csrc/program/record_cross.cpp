// Attention to another text, and operations for the sequences that have one.
#include <cstring>
#include <vector>

#include "program/recorder.h"
#include "program/require.h"

namespace dragoman {

void Recorder::cross_attend(int out, int x, long q_offset, long heads, long layer, float scale, bool of_step) {
  Attention attention = this->attention(out, x, q_offset, heads, layer, scale);
  require(buffers_.at(x).rows == Rows::tokens, "cross_attend needs one row per token, not per logits row");
  attention.causal = false;
  require(is_optional_ || !limits_.cross_is_optional, "cross_attend: either all of it is optional, or none");
  require(!is_optional_ || !limits_.cross_attends || limits_.cross_is_optional,
          "cross_attend: either all of it is optional, or none");
  limits_.cross_attends = true;
  limits_.cross_is_optional = is_optional_;
  limits_.looks_at_step = limits_.looks_at_step || of_step;
  buffers_.write(out, Rows::tokens);
  divisible_ = false;
  push(OperationKind::attend, [=](const RowPartition& part, Scratch& scratch) {
    const std::vector<Attention::Sequence>& texts = part.checked->cross_sequences;
    dragoman::attend(attention, texts.data(), static_cast<long>(texts.size()), scratch);
  });
}

void Recorder::begin_optional() {
  require(!is_optional_, "begin_optional: optional operations begin within others");
  is_optional_ = true;
  divisible_ = false;
}

void Recorder::end_optional() {
  require(is_optional_, "end_optional: no optional operations began");
  is_optional_ = false;
}

void Recorder::clear_without_text(int x) {
  Buffer& buffer = buffers_.read(x);
  require(buffer.rows == Rows::tokens, "clear_without_text needs one row per token, not per logits row");
  require(is_optional_, "clear_without_text: texts are optional within optional operations");
  push(OperationKind::scale, [&buffer](const RowPartition& part, Scratch&) {
    const Batch& batch = part.batch();
    for (long s = 0; s < batch.sequences; ++s) {
      if (batch.cross_lengths[s] > 0) continue;
      for (long row = batch.row_starts[s]; row < batch.row_starts[s + 1]; ++row) {
        std::memset(buffer.row(row), 0, static_cast<std::size_t>(buffer.width) * sizeof(float));
      }
    }
  });
}

}  // namespace dragoman
