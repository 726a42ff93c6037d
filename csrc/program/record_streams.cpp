// The recorder's operations on streams of several parts, and on columns of buffers; what is read of buffers.
#include <algorithm>
#include <cstring>

#include "program/for_rows.h"
#include "program/recorder.h"
#include "program/require.h"
#include "simd/kernels.h"

namespace dragoman {
namespace {

// The number of parts for which there are `factors` from each to each, or one each.
long parts_of(const Buffer& x, long parts, const char* operation) {
  require(parts >= 1 && parts <= kMostParts && x.width % parts == 0,
          std::string(operation) + ": the factors do not fit the buffer's parts");
  return parts;
}

}  // namespace

void Recorder::add_embeddings(int x, const Matrix& table, float factor) {
  Buffer& out = buffers_.read(x);
  require(out.rows == Rows::tokens, "add_embeddings needs one row per token, not per logits row");
  const long parts = out.width / table.k;
  require(out.width == parts * table.k && table.n % parts == 0,
          "add_embeddings: the table does not have the buffer's parts");
  const long tokens = table.n / parts;
  push(OperationKind::embed, [=, &out, &table](const RowPartition& part, Scratch&) {
    for_rows(part.tokens, out.width, [&](long begin, long end) {
      thread_local std::vector<float> values;
      values.resize(static_cast<std::size_t>(table.k));
      for (long r = begin; r < end; ++r) {
        const long id = part.batch().token_ids[r], token = id < tokens ? id : 0;
        for (long j = 0; j < parts; ++j) {
          gather_row(table, token * parts + j, values.data());
          kernels().transform.add(out.row(r) + j * table.k, 0, values.data(), 0, 1, table.k, factor);
        }
      }
    });
  });
}

void Recorder::add_given(int x, long part) {
  Buffer& out = buffers_.read(x);
  require(out.rows == Rows::tokens, "add_given needs one row per token, not per logits row");
  require(part >= 1 && limits_.embedding_width > 0 && out.width == limits_.embedding_width,
          "add_given: a part is as wide as the embeddings, which are the first");
  limits_.given_parts = std::max(limits_.given_parts, part + 1);
  push(OperationKind::embed, [=, &out](const RowPartition& partition, Scratch&) {
    const Batch& batch = partition.batch();
    if (batch.override_width <= part * out.width) return;  // of embeddings alone
    for (long i = 0; i < batch.overrides; ++i) {
      const float* const given = batch.override_values + i * batch.override_width + part * out.width;
      kernels().transform.add(out.row(batch.override_rows[i]), 0, given, 0, 1, out.width, 1.0f);
    }
  });
}

void Recorder::clip_columns(int x, long offset, long width, float low, float high) {
  Buffer& buffer = buffers_.read(x);
  require(offset >= 0 && width > 0 && offset + width <= buffer.width, "clip_columns: they reach beyond the buffer");
  require(low <= high, "clip_columns: the lower limit is above the upper one");
  const Rows domain = buffer.rows;
  push(OperationKind::activation, [=, &buffer](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), width, [&](long begin, long end) {
      for (long r = begin; r < end; ++r) {
        float* const row = buffer.row(r) + offset;
        for (long i = 0; i < width; ++i) row[i] = std::min(std::max(row[i], low), high);
      }
    });
  });
}

void Recorder::join(int out, int x, int y, long offset) {
  const Buffer& first = buffers_.read(x);
  const Buffer& second = buffers_.read(y);
  const Rows domain = first.rows;
  const long width = buffers_.at(out).width - first.width;
  const bool in_place = buffers_.at(out).memory == first.memory;
  require(second.rows == domain, "join: the buffers have rows of different kinds");
  require(width > 0 && offset >= 0 && offset + width <= second.width, "join: the columns reach beyond the buffer");
  if (y != x) require_apart(out, y, "join");
  const Buffer& to = buffers_.write(out, domain);
  push(OperationKind::add, [=, &first, &second, &to](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), to.width, [&](long begin, long end) {
      for (long r = begin; r < end; ++r) {
        float* const row = to.row(r);
        if (!in_place) std::memcpy(row, first.row(r), static_cast<std::size_t>(first.width) * sizeof(float));
        std::memcpy(row + first.width, second.row(r) + offset, static_cast<std::size_t>(width) * sizeof(float));
      }
    });
  });
}

void Recorder::predict_parts(int out, int x, int factors) {
  const Buffer& from = buffers_.read(x);
  const Buffer& by = buffers_.read(factors);
  const Rows domain = from.rows;
  long parts = 1;
  while (parts * parts < by.width) ++parts;
  require(parts * parts == by.width, "predict_parts: there is a factor from each part to each");
  parts_of(from, parts, "predict_parts");
  require(by.rows == domain, "predict_parts: the buffers have rows of different kinds");
  require_apart(out, x, "predict_parts");
  require_apart(out, factors, "predict_parts");
  require(buffers_.at(out).width == from.width, "predict_parts: the buffers differ in width");
  const Buffer& to = buffers_.write(out, domain);
  push(OperationKind::add, [=, &from, &by, &to](const RowPartition& rows, Scratch&) {
    for_rows(rows.rows(domain), from.width * parts, [&](long begin, long end) {
      kernels().streams.predict(from.row(begin), from.stride, by.row(begin), by.stride, end - begin, parts,
                                from.width / parts, to.row(begin), to.stride);
    });
  });
}

void Recorder::correct_parts(int x, int computed, int factors, long active) {
  const Buffer& buffer = buffers_.read(x);
  const Buffer& from = buffers_.read(computed);
  const Buffer& by = buffers_.read(factors);
  const Rows domain = buffer.rows;
  const long parts = parts_of(buffer, by.width, "correct_parts");
  require(from.width * parts == buffer.width, "correct_parts: what is computed is not one part");
  require(active >= 0 && active < parts, "correct_parts: the stream has no such part");
  require(from.rows == domain && by.rows == domain, "correct_parts: the buffers have rows of different kinds");
  require_apart(x, computed, "correct_parts");
  require_apart(x, factors, "correct_parts");
  push(OperationKind::add, [=, &buffer, &from, &by](const RowPartition& rows, Scratch&) {
    for_rows(rows.rows(domain), buffer.width, [&](long begin, long end) {
      kernels().streams.correct(buffer.row(begin), buffer.stride, from.row(begin), from.stride, by.row(begin),
                                by.stride, end - begin, parts, active, from.width);
    });
  });
}

void Recorder::match_magnitude(int out, int x, float least) {
  const Buffer& from = buffers_.read(x);
  const Buffer& to = buffers_.read(out);
  const Rows domain = from.rows;
  require(to.width % from.width == 0 && to.rows == domain, "match_magnitude: the buffers do not fit each other");
  require(least > 0, "match_magnitude: the limit must be positive");
  require_apart(out, x, "match_magnitude");
  push(OperationKind::scale, [=, &from, &to](const RowPartition& rows, Scratch&) {
    for_rows(rows.rows(domain), to.width, [&](long begin, long end) {
      for (long part = 0; part < to.width; part += from.width) {
        kernels().streams.match(to.row(begin) + part, to.stride, from.row(begin), from.stride, end - begin, from.width,
                                least);
      }
    });
  });
}

void Recorder::add_to_parts(int x, int value, long first) {
  const Buffer& buffer = buffers_.read(x);
  const Buffer& from = buffers_.read(value);
  const Rows domain = from.rows;
  require(buffer.width % from.width == 0 && buffer.rows == domain, "add_to_parts: the buffers do not fit each other");
  require(first >= 0 && first * from.width < buffer.width, "add_to_parts: the stream has no such part");
  require_apart(x, value, "add_to_parts");
  push(OperationKind::add, [=, &buffer, &from](const RowPartition& rows, Scratch&) {
    for_rows(rows.rows(domain), buffer.width, [&](long begin, long end) {
      for (long part = first * from.width; part < buffer.width; part += from.width) {
        kernels().transform.add(buffer.row(begin) + part, buffer.stride, from.row(begin), from.stride, end - begin,
                                from.width, 1.0f);
      }
    });
  });
}

void Recorder::scale_columns(int x, const float* factors) {
  const Buffer& buffer = buffers_.read(x);
  const Rows domain = buffer.rows;
  push(OperationKind::scale, [=, &buffer](const RowPartition& rows, Scratch&) {
    for_rows(rows.rows(domain), buffer.width, [&](long begin, long end) {
      kernels().recurrence.multiply(Gate::plain, buffer.row(begin), buffer.stride, factors, 0, end - begin,
                                    buffer.width, buffer.row(begin), buffer.stride);
    });
  });
}

void Recorder::keep_largest(int x, long width, float deviations) {
  const Buffer& buffer = buffers_.read(x);
  require(width > 0 && width <= buffer.width, "keep_largest: the columns reach beyond the buffer");
  const Rows domain = buffer.rows;
  push(OperationKind::activation, [=, &buffer](const RowPartition& rows, Scratch&) {
    for_rows(rows.rows(domain), width, [&](long begin, long end) {
      kernels().streams.keep_largest(buffer.row(begin), buffer.stride, end - begin, width, deviations);
    });
  });
}

Logits Recorder::rows_of(int x, long rows) {
  const Buffer& buffer = buffers_.read(x);
  const long most = buffer.rows == Rows::tokens ? limits_.max_tokens : limits_.max_logit_rows;
  require(rows >= 0 && rows <= most, "rows: buffer " + std::to_string(x) + " has no " + std::to_string(rows) + " rows");
  return {.data = buffer.data(), .rows = rows, .vocab = buffer.width, .stride = buffer.stride};
}

}  // namespace dragoman
