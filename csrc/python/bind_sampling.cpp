// Sampling as Python sees it. Logits may be a view with padded rows, as Program.run returns it.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "python/bindings.h"
#include "sampling/philox.h"
#include "sampling/sampling.h"
#include "sampling/truncations.h"

namespace nb = nanobind;

namespace dragoman {
namespace {

template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2D = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

template <class A>
void require_size(const A& array, long size, const char* name) {
  require(static_cast<long>(array.shape(0)) == size,
          std::string(name) + " must have " + std::to_string(size) + " elements");
}

template <class Float>
RowsOf<Float> rows_of(const nb::ndarray<Float, nb::ndim<2>, nb::device::cpu>& logits) {
  require(logits.shape(1) > 0 && logits.shape(1) <= INT32_MAX, "logits must have at least one column");
  require(logits.shape(0) == 0 || logits.stride(1) == 1, "the tokens of a row of logits must be neighbours in memory");
  return {.data = logits.data(),
          .rows = static_cast<long>(logits.shape(0)),
          .vocab = static_cast<long>(logits.shape(1)),
          .stride = static_cast<long>(logits.stride(0))};
}
using Logits2D = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

void check_rows(const Array<const std::int32_t>& rows, const LogitRows& logits) {
  for (std::size_t i = 0; i < rows.shape(0); ++i) {
    require(rows.data()[i] >= 0 && rows.data()[i] < logits.rows,
            "row " + std::to_string(rows.data()[i]) + " is not in the logits");
  }
}

void check_ids(const Array<const std::int32_t>& ids, long vocab) {
  for (std::size_t i = 0; i < ids.shape(0); ++i) {
    require(ids.data()[i] >= 0 && ids.data()[i] < vocab,
            "token id " + std::to_string(ids.data()[i]) + " is not in a vocabulary of " + std::to_string(vocab));
  }
}

void check_range(const Array<const float>& values, const char* name, float most, bool open) {
  for (std::size_t i = 0; i < values.shape(0); ++i) {
    const float value = values.data()[i];
    require(std::isfinite(value) && value >= 0 && (open ? value < most : value <= most),
            std::string(name) + " is out of its range: " + std::to_string(value));
  }
}

template <class T>
using Optional = std::optional<Array<T>>;

template <class T>
T* data_of(const Optional<T>& array, long size, const char* name) {
  if (!array) return nullptr;
  require_size(*array, size, name);
  return array->data();
}

// The values of each truncation, in the order of truncations(); null where the dictionary has none of its name.
class TruncationColumns {
 public:
  TruncationColumns(const nb::dict& given, long rows) : values_(truncations().size()) {
    for (const auto [key, value] : given) {
      const auto name = nb::cast<std::string>(key);
      const auto found = std::find_if(truncations().begin(), truncations().end(),
                                      [&](const Truncation& truncation) { return name == truncation.name; });
      require(found != truncations().end(), "there is no truncation " + name);
      const auto& column = columns_.emplace_back(nb::cast<Array<const float>>(value));
      require_size(column, rows, found->name);
      check_range(column, found->name, found->maximum, false);
      values_[found - truncations().begin()] = column.data();
    }
  }

  std::span<const float* const> values() const { return values_; }

 private:
  std::vector<Array<const float>> columns_;  // which own what the values point to
  std::vector<const float*> values_;
};

void sample_rows(const nb::ndarray<float, nb::ndim<2>, nb::device::cpu>& logits, const Array<const float>& temperature,
                 const Array<const float>& uniform, const Array<std::int32_t>& token_ids, const nb::dict& truncations,
                 const Optional<float>& logprobs, const Optional<const std::int32_t>& mirostat,
                 const Optional<const float>& mirostat_limit, const Optional<float>& mirostat_surprise,
                 const Optional<const std::uint8_t>& overwrite) {
  const WritableRows rows = rows_of(logits);
  require_size(temperature, rows.rows, "temperature");
  require_size(uniform, rows.rows, "uniform");
  require_size(token_ids, rows.rows, "token_ids");
  const TruncationColumns columns(truncations, rows.rows);
  const Sampling sampling{.temperature = temperature.data(),
                          .uniform = uniform.data(),
                          .truncations = columns.values(),
                          .mirostat = data_of(mirostat, rows.rows, "mirostat"),
                          .mirostat_limit = data_of(mirostat_limit, rows.rows, "mirostat_limit"),
                          .mirostat_surprise = data_of(mirostat_surprise, rows.rows, "mirostat_surprise"),
                          .overwrite = data_of(overwrite, rows.rows, "overwrite")};
  float* const chosen = data_of(logprobs, rows.rows, "logprobs");
  check_range(temperature, "temperature", INFINITY, true);
  check_range(uniform, "uniform", 1, true);
  if (mirostat) {
    require(mirostat_limit && mirostat_surprise, "mirostat needs its limit and a place for the surprise");
    for (long r = 0; r < rows.rows; ++r) {
      require(sampling.mirostat[r] >= 0 && sampling.mirostat[r] <= 2, "mirostat has the versions 1 and 2");
      require(std::isfinite(sampling.mirostat_limit[r]), "mirostat_limit must be finite");
    }
  }
  const nb::gil_scoped_release release;
  sample(rows, sampling, token_ids.data(), chosen);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("sample", &sample_rows, nb::arg("logits"), nb::arg("temperature"), nb::arg("uniform"), nb::arg("token_ids"),
        nb::arg("truncations"), nb::arg("logprobs").none(), nb::arg("mirostat").none(),
        nb::arg("mirostat_limit").none(), nb::arg("mirostat_surprise").none(), nb::arg("overwrite").none());

  m.def("truncations", [] {
    nb::list names;
    for (const Truncation& truncation : truncations()) names.append(truncation.name);
    return nb::tuple(names);
  });

  m.def("log_softmax_at", [](const Logits2D& logits, const Array<const std::int32_t>& rows,
                             const Array<const std::int32_t>& ids, const Array<float>& out) {
    const LogitRows all = rows_of(logits);
    const long count = static_cast<long>(rows.shape(0));
    require_size(ids, count, "ids");
    require_size(out, count, "out");
    check_rows(rows, all);
    check_ids(ids, all.vocab);
    const nb::gil_scoped_release release;
    log_softmax_at(all, rows.data(), ids.data(), count, out.data());
  });

  m.def("top_logprobs", [](const Logits2D& logits, const Array<const std::int32_t>& rows,
                           const Array2D<std::int32_t>& ids, const Array2D<float>& logprobs) {
    const LogitRows all = rows_of(logits);
    const long count = static_cast<long>(rows.shape(0)), k = static_cast<long>(ids.shape(1));
    require_size(ids, count, "ids");
    require_size(logprobs, count, "logprobs");
    require(logprobs.shape(1) == ids.shape(1), "ids and logprobs differ in shape");
    require(k >= 1 && k <= all.vocab, "k must be between 1 and the size of the vocabulary");
    check_rows(rows, all);
    const nb::gil_scoped_release release;
    top_logprobs(all, rows.data(), count, k, ids.data(), logprobs.data());
  });

  m.def("apply_penalties",
        [](const Array<float>& row, const Array<const std::int32_t>& ids, const Array<const std::int32_t>& counts,
           float repetition, float frequency, float presence) {
          require_size(counts, static_cast<long>(ids.shape(0)), "counts");
          require(repetition > 0, "the repetition penalty must be positive");
          check_ids(ids, static_cast<long>(row.shape(0)));
          for (std::size_t i = 0; i < ids.shape(0); ++i) {
            float& logit = row.data()[ids.data()[i]];
            const auto count = static_cast<float>(counts.data()[i]);
            logit = logit > 0 ? logit / repetition : logit * repetition;
            logit -= frequency * count + (count > 0 ? presence : 0.0f);
          }
        });

  m.def("add_bias", [](const Array<float>& row, const Array<const std::int32_t>& ids, const Array<const float>& bias) {
    require_size(bias, static_cast<long>(ids.shape(0)), "bias");
    check_ids(ids, static_cast<long>(row.shape(0)));
    for (std::size_t i = 0; i < ids.shape(0); ++i) row.data()[ids.data()[i]] += bias.data()[i];
  });

  m.def("philox_uniform", [](const Array<const std::uint64_t>& seeds, const Array<const std::uint64_t>& positions,
                             std::uint64_t purpose, const Array<float>& out) {
    const long count = static_cast<long>(seeds.shape(0));
    require_size(positions, count, "positions");
    require_size(out, count, "out");
    for (long i = 0; i < count; ++i) {
      out.data()[i] = uniform_of(philox4x64({positions.data()[i], purpose, 0, 0}, {seeds.data()[i], 0})[0]);
    }
  });

  m.def("add_to_green_list",
        [](const Array<float>& row, std::uint64_t key, std::uint64_t previous, double share, float delta) {
          require(share >= 0 && share <= 1, "share is out of its range");
          const GreenList green{.key = key, .previous = previous, .limit = static_cast<std::uint64_t>(share * 0x1p32)};
          const nb::gil_scoped_release release;
          add_to_green_list(row.data(), static_cast<long>(row.shape(0)), green, delta);
        });

  m.def("green_list", [](std::uint64_t key, std::uint64_t previous, double share, const Array<std::uint8_t>& out) {
    require(share >= 0 && share <= 1, "share is out of its range");
    const auto limit = static_cast<std::uint64_t>(share * 0x1p32);
    const long vocab = static_cast<long>(out.shape(0));
    for (long first = 0; first < vocab; first += 8) {
      const auto words = philox4x64({static_cast<std::uint64_t>(first / 8), previous, 0, 0}, {key, 1});
      for (long i = first; i < std::min(first + 8, vocab); ++i) {
        const std::uint64_t word = words[(i - first) / 2] >> ((i - first) % 2 * 32) & 0xffffffffu;
        out.data()[i] = word < limit;
      }
    }
  });
}

}  // namespace dragoman
