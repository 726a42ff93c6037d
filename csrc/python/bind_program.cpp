// Python bindings of KVPool and Program. Shapes that C++ cannot know from a pointer are checked here.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "program/program.h"
#include "python/bindings.h"
#include "python/names.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace dragoman {
namespace {

template <class T, int N>
using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Vector = Array<float, 1>;
using Table = Array<float, 2>;
using Ids = Array<std::int32_t, 1>;

// The program and the arrays that its pointers refer to.
class OwningProgram : public Program {
 public:
  using Program::Program;

  const float* keep(const Vector& vector, long size, const char* name) {
    require(static_cast<long>(vector.shape(0)) == size,
            std::string(name) + " must have " + std::to_string(size) + " elements");
    return keep_data(vector);
  }
  const float* keep(const std::optional<Vector>& vector, long size, const char* name) {
    return vector ? keep(*vector, size, name) : nullptr;
  }
  const float* keep(const Table& table) { return keep_data(table); }
  const Matrix& keep(const PackedMatrix& matrix) {
    objects_.push_back(nb::find(matrix));
    return matrix.matrix;
  }

 private:
  template <class T>
  const float* keep_data(const T& array) {
    arrays_.emplace_back(array);
    return array.data();
  }

  std::vector<nb::ndarray<>> arrays_;
  std::vector<nb::object> objects_;
};

// Wraps a method of the recorder as one of the program.
template <class Result, class... Arguments>
auto recording(Result (Recorder::*method)(Arguments...)) {
  return [method](OwningProgram& p, Arguments... arguments) { return (p.recorder().*method)(arguments...); };
}

void record_experts(OwningProgram& p, int out, int x, const PackedMatrix& router,
                    const std::vector<const PackedMatrix*>& inward, const std::vector<const PackedMatrix*>& outward,
                    long active, bool over_all, const std::optional<std::string>& shared, bool gated,
                    const std::string& name, float factor, bool accumulate, const std::string& scored,
                    const std::optional<Vector>& choice_bias, long groups, long active_groups, long group_top,
                    float least, float weight_factor, float margin, bool scale_inputs,
                    const std::optional<Vector>& router_bias, const std::optional<std::vector<Vector>>& in_biases,
                    const std::optional<std::vector<Vector>>& out_biases, int routed,
                    const std::optional<Vector>& expert_scales, long identities) {
  require(inward.size() == outward.size() && !inward.empty(), "experts: each has two matrices");
  Experts experts;
  experts.routing.shared = shared_expert(shared);
  require(identities >= 0 && identities < kMostExperts,
          "experts: the number of those without matrices is not possible");
  experts.routing.experts = static_cast<long>(inward.size()) - (shared ? 1 : 0) + identities;
  experts.routing.identities = identities;
  experts.routing.active = active;
  experts.routing.over_all = over_all;
  experts.routing.scores = scores(scored);
  experts.routing.bias = p.keep(choice_bias, experts.routing.experts, "choice_bias");
  experts.routing.groups = groups;
  experts.routing.active_groups = active_groups;
  experts.routing.group_top = group_top;
  experts.routing.least = least;
  experts.routing.factor = weight_factor;
  experts.routing.margin = margin;
  experts.routing.scale_inputs = scale_inputs;
  experts.routing.scales = p.keep(expert_scales, experts.routing.experts, "expert_scales");
  experts.router = p.keep(router);
  experts.router_bias = p.keep(router_bias, router.matrix.n, "router_bias");
  require(!in_biases || (in_biases->size() == inward.size() && out_biases && out_biases->size() == inward.size()),
          "experts: there must be biases for each expert");
  for (std::size_t i = 0; i < inward.size(); ++i) {
    require(inward[i] != nullptr && outward[i] != nullptr, "experts: a matrix is missing");
    Expert expert{.in = p.keep(*inward[i]), .out = p.keep(*outward[i])};
    if (in_biases) {
      expert.in_bias = p.keep((*in_biases)[i], expert.in.n, "in_biases");
      expert.out_bias = p.keep((*out_biases)[i], expert.out.n, "out_biases");
    }
    experts.experts.push_back(expert);
  }
  experts.gated = gated;
  experts.activation = activation(name);
  experts.factor = factor;
  p.recorder().experts(out, x, routed, std::move(experts), accumulate);
}

nb::object view(OwningProgram& program, const Logits& rows) {
  const std::size_t shape[] = {static_cast<std::size_t>(rows.rows), static_cast<std::size_t>(rows.vocab)};
  const std::int64_t strides[] = {rows.stride, 1};
  return nb::cast(nb::ndarray<nb::numpy, float>(const_cast<float*>(rows.data), 2, shape, nb::find(program), strides),
                  nb::rv_policy::reference);
}

nb::object run(OwningProgram& program, const Ids& token_ids, const Ids& positions, const Ids& row_starts,
               const Array<std::int32_t, 3>& block_tables, const Ids& logit_rows,
               const std::optional<Ids>& embedding_rows, const std::optional<Table>& embedding_values,
               const std::optional<Ids>& adapters, const std::optional<Array<std::int32_t, 2>>& cross_tables,
               const std::optional<Ids>& cross_lengths, const std::optional<Ids>& state_slots,
               const std::optional<Ids>& state_rows, const std::optional<Ids>& seen_ends,
               const std::optional<Array<std::int32_t, 2>>& rotary_positions,
               const std::optional<nb::callable>& meanwhile, int interrupt, std::pair<long, long> operations) {
  require(positions.shape(0) == token_ids.shape(0), "token_ids and positions differ in length");
  const std::size_t sequences = block_tables.shape(1);
  require(row_starts.shape(0) == sequences + 1, "row_starts must have one entry more than block_tables");
  require(embedding_rows.has_value() == embedding_values.has_value(),
          "embedding_rows and embedding_values go together");
  Batch batch{.token_ids = token_ids.data(),
              .positions = positions.data(),
              .tokens = static_cast<long>(token_ids.shape(0)),
              .row_starts = row_starts.data(),
              .sequences = static_cast<long>(sequences),
              .block_tables = block_tables.data(),
              .groups = static_cast<long>(block_tables.shape(0)),
              .table_width = static_cast<long>(block_tables.shape(2)),
              .logit_rows = logit_rows.data(),
              .logits = static_cast<long>(logit_rows.shape(0)),
              .first_operation = operations.first,
              .operations_end = operations.second};
  if (embedding_rows) {
    require(embedding_rows->shape(0) == embedding_values->shape(0), "one row of embedding_values per embedding row");
    batch.override_rows = embedding_rows->data();
    batch.override_values = embedding_values->data();
    batch.overrides = static_cast<long>(embedding_rows->shape(0));
    batch.override_width = static_cast<long>(embedding_values->shape(1));
  }
  if (adapters) {
    require(adapters->shape(0) == sequences, "one entry of adapters per sequence");
    batch.adapters = adapters->data();
  }
  require(cross_tables.has_value() == cross_lengths.has_value(), "cross_tables and cross_lengths go together");
  if (cross_tables) {
    require(cross_tables->shape(0) == sequences && cross_lengths->shape(0) == sequences,
            "cross_tables and cross_lengths have an entry for each sequence");
    batch.cross_tables = cross_tables->data();
    batch.cross_lengths = cross_lengths->data();
    batch.cross_width = static_cast<long>(cross_tables->shape(1));
  }
  require(state_slots.has_value() == state_rows.has_value(), "state_slots and state_rows go together");
  if (state_slots) {
    require(state_slots->shape(0) == sequences, "one entry of state_slots per sequence");
    require(state_rows->shape(0) == token_ids.shape(0), "one entry of state_rows per token");
    batch.state_slots = state_slots->data();
    batch.state_rows = state_rows->data();
  }
  if (seen_ends) {
    require(seen_ends->shape(0) == token_ids.shape(0), "one entry of seen_ends per token");
    batch.seen_ends = seen_ends->data();
  }
  if (rotary_positions) {
    require(rotary_positions->shape(0) == kRotaryAxes && rotary_positions->shape(1) == token_ids.shape(0),
            "three entries of rotary_positions per token");
    batch.rotary_positions = rotary_positions->data();
  }
  Logits logits{};
  Interrupt ends(interrupt);
  BackgroundTask task;
  if (meanwhile) {
    task.run = [&] {
      const nb::gil_scoped_acquire acquire;
      (*meanwhile)();
    };
  }
  {
    const nb::gil_scoped_release release;
    const ThreadPool::ActiveScope active(pool(), meanwhile ? &task : nullptr);
    logits = program.run(batch, ends);
  }
  if (task.error) std::rethrow_exception(task.error);
  return view(program, logits);
}

void require_group(const KVPool& kv, long group) {
  require(group >= 0 && group < kv.groups(), "the pool has no group " + std::to_string(group));
}

void bind_kv_pool(nb::module_& m) {
  using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
  nb::class_<KVPool>(m, "KVPool")
      .def(nb::new_([](const std::vector<long>& blocks, const std::vector<long>& kv_heads,
                       const std::vector<long>& head_dims, const std::vector<long>& groups,
                       const std::string& precision, long latent, long own_blocks) {
             require(kv_heads.size() == head_dims.size() && kv_heads.size() == groups.size(),
                     "kv_heads, head_dims and groups differ in length");
             std::vector<KVHeads> heads;
             for (std::size_t i = 0; i < kv_heads.size(); ++i) heads.push_back({kv_heads[i], head_dims[i], groups[i]});
             return std::make_shared<KVPool>(std::move(heads), blocks, kv_precision(precision), latent, own_blocks);
           }),
           nb::kw_only(), nb::arg("blocks"), nb::arg("kv_heads"), nb::arg("head_dims"), nb::arg("groups"),
           nb::arg("precision"), nb::arg("latent"), nb::arg("own_blocks"))
      .def_prop_ro("layers", &KVPool::layers)
      .def_prop_ro("precision", [](const KVPool& kv) { return name_of(kv.precision()); })
      .def(
          "bytes_per_block",
          [](const KVPool& kv, long group) {
            require_group(kv, group);
            return kv.bytes_per_block(group);
          },
          nb::arg("group"))
      .def(
          "data",
          [](nb::handle self, long group) {
            const KVPool& kv = nb::cast<const KVPool&>(self);
            require_group(kv, group);
            return Bytes(kv.data(group), {kv.nbytes(group)}, self);
          },
          nb::arg("group"))
      .def(
          "copy_blocks",
          [](KVPool& kv, long group, const Ids& sources, const Ids& targets) {
            require(sources.shape(0) == targets.shape(0), "sources and targets differ in length");
            const nb::gil_scoped_release release;
            kv.copy_blocks(group, sources.data(), targets.data(), static_cast<long>(sources.shape(0)));
          },
          nb::arg("group"), nb::arg("sources"), nb::arg("targets"));
}

void bind_state_pool(nb::module_& m) {
  using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
  nb::class_<StatePool>(m, "StatePool")
      .def(nb::new_(
               [](long slots, const std::vector<long>& floats) { return std::make_shared<StatePool>(slots, floats); }),
           nb::kw_only(), nb::arg("slots"), nb::arg("floats"))
      .def_prop_ro("slots", &StatePool::slots)
      .def_prop_ro("slot_bytes", &StatePool::slot_bytes)
      .def_prop_ro("nbytes", &StatePool::nbytes)
      .def_prop_ro("data",
                   [](nb::handle self) {
                     const StatePool& states = nb::cast<const StatePool&>(self);
                     return Bytes(states.data(), {states.nbytes()}, self);
                   })
      .def(
          "copy_slots",
          [](StatePool& states, const Ids& sources, const Ids& targets) {
            require(sources.shape(0) == targets.shape(0), "sources and targets differ in length");
            const nb::gil_scoped_release release;
            states.copy_slots(sources.data(), targets.data(), static_cast<long>(sources.shape(0)));
          },
          nb::arg("sources"), nb::arg("targets"));
}

}  // namespace

void bind_program(nb::module_& m) {
  bind_kv_pool(m);
  bind_state_pool(m);
  nb::exception<Interrupted>(m, "Interrupted");
  nb::class_<OwningProgram>(m, "Program")
      .def(nb::init<long, long, long, std::shared_ptr<KVPool>, std::shared_ptr<StatePool>>(), nb::kw_only(),
           nb::arg("max_tokens"), nb::arg("max_sequences"), nb::arg("max_logit_rows"), nb::arg("kv"),
           nb::arg("states").none())
      .def("buffer", recording(&Recorder::buffer), nb::arg("width"), nb::arg("over"))
      .def("width", [](OwningProgram& p, int x) { return p.recorder().width(x); })
      .def("embed", [](OwningProgram& p, int x, const PackedMatrix& table,
                       float scale) { p.recorder().embed(x, p.keep(table), scale); })
      .def("add_embeddings", [](OwningProgram& p, int x, const PackedMatrix& table,
                                float factor) { p.recorder().add_embeddings(x, p.keep(table), factor); })
      .def("clip_columns", recording(&Recorder::clip_columns))
      .def("add_given", recording(&Recorder::add_given))
      .def("add_positions",
           [](OwningProgram& p, int x, const Table& table) {
             require(static_cast<long>(table.shape(1)) == p.recorder().width(x),
                     "the position table does not have the buffer's width");
             p.recorder().add_positions(x, p.keep(table), static_cast<long>(table.shape(0)));
           })
      .def(
          "norm",
          [](OwningProgram& p, int out, int x, const Vector& weight, const std::optional<Vector>& bias, float eps,
             const std::string& kind) {
            const long width = p.recorder().width(x);
            p.recorder().norm(out, x, p.keep(weight, width, "weight"), p.keep(bias, width, "bias"), eps,
                              norm_kind(kind));
          },
          nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"), nb::arg("kind"))
      .def(
          "linear",
          [](OwningProgram& p, int out, int x, const PackedMatrix& w, const std::optional<Vector>& bias,
             bool accumulate) { p.recorder().linear(out, x, p.keep(w), p.keep(bias, w.matrix.n, "bias"), accumulate); },
          nb::arg("out"), nb::arg("x"), nb::arg("w"), nb::arg("bias").none(), nb::arg("accumulate"))
      .def("head_linear", [](OwningProgram& p, int out, int x, const PackedMatrix& w,
                             long heads) { p.recorder().head_linear(out, x, p.keep(w), heads); })
      .def(
          "head_norm",
          [](OwningProgram& p, int x, long offset, long heads, long head_dim, const Vector& weight,
             const std::optional<Vector>& bias, float eps, const std::string& kind) {
            const bool own = heads > 1 && static_cast<long>(weight.shape(0)) == heads * head_dim;
            const long size = own ? heads * head_dim : head_dim;
            p.recorder().head_norm(x, offset, heads, head_dim, p.keep(weight, size, "weight"),
                                   p.keep(bias, size, "bias"), own ? head_dim : 0, eps, norm_kind(kind));
          },
          nb::arg("x"), nb::arg("offset"), nb::arg("heads"), nb::arg("head_dim"), nb::arg("weight"),
          nb::arg("bias").none(), nb::arg("eps"), nb::arg("kind"))
      .def("rotate",
           [](OwningProgram& p, int x, long offset, long heads, long head_dim, const Table& cos, const Table& sin,
              bool interleaved, const std::optional<Ids>& axes) {
             require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1), "cos and sin differ in shape");
             p.recorder().rotate(x, offset, heads, head_dim, p.keep(cos), p.keep(sin), static_cast<long>(cos.shape(1)),
                                 static_cast<long>(cos.shape(0)), interleaved,
                                 axes ? std::vector<std::int32_t>(axes->data(), axes->data() + axes->shape(0))
                                      : std::vector<std::int32_t>());
           },
           nb::arg("x"), nb::arg("offset"), nb::arg("heads"), nb::arg("head_dim"), nb::arg("cos"), nb::arg("sin"),
           nb::arg("interleaved"), nb::arg("axes").none())
      .def("write_kv", recording(&Recorder::write_kv))
      .def(
          "attend",
          [](OwningProgram& p, int out, int x, long q_offset, long heads, long layer, float scale, long window,
             float softcap, const std::optional<Vector>& slopes, const std::optional<Table>& bias, bool causal,
             const std::optional<Vector>& sinks, long chunk, bool both_ways) {
            ScoreTerms terms{.softcap = softcap,
                             .slopes = p.keep(slopes, heads, "slopes"),
                             .sinks = p.keep(sinks, heads, "sinks")};
            if (bias) {
              require(static_cast<long>(bias->shape(0)) == heads, "bias must have a row for each head");
              require(bias->shape(1) % 2 == 1, "bias must have an odd number of columns, distance 0 in the middle");
              terms.bias = p.keep(*bias);
              terms.reach = static_cast<long>(bias->shape(1) / 2);
            }
            p.recorder().attend(out, x, q_offset, heads, layer, scale, window, chunk, terms, causal, both_ways);
          },
          nb::arg("out"), nb::arg("x"), nb::arg("q_offset"), nb::arg("heads"), nb::arg("layer"), nb::arg("scale"),
          nb::arg("window"), nb::arg("softcap"), nb::arg("slopes").none(), nb::arg("bias").none(), nb::arg("causal"),
          nb::arg("sinks").none(), nb::arg("chunk"), nb::arg("both_ways"))
      .def("cross_attend", recording(&Recorder::cross_attend))
      .def("begin_optional", recording(&Recorder::begin_optional))
      .def("end_optional", recording(&Recorder::end_optional))
      .def("clear_without_text", recording(&Recorder::clear_without_text))
      .def(
          "convolve",
          [](OwningProgram& p, int x, long offset, const Table& weight, const std::optional<Vector>& bias, long part,
             bool activated) {
            const long taps = static_cast<long>(weight.shape(0)), width = static_cast<long>(weight.shape(1));
            p.recorder().convolve(x, offset, width, part, taps, p.keep(weight), p.keep(bias, width, "bias"), activated);
          },
          nb::arg("x"), nb::arg("offset"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("part"),
          nb::arg("activated"))
      .def(
          "recur",
          [](OwningProgram& p, int out, int x, int gates, long q_offset, long k_offset, long v_offset, long heads,
             long group, long key_dim, long value_dim, long part, const std::optional<Vector>& skip, bool delta,
             bool key_decays) {
            const RecurrenceShape shape{.q_offset = q_offset,
                                        .k_offset = k_offset,
                                        .v_offset = v_offset,
                                        .heads = heads,
                                        .group = group,
                                        .key_dim = key_dim,
                                        .value_dim = value_dim,
                                        .delta = delta,
                                        .key_decays = key_decays};
            p.recorder().recur(out, x, gates, shape, part, p.keep(skip, heads, "skip"));
          },
          nb::arg("out"), nb::arg("x"), nb::arg("gates"), nb::arg("q_offset"), nb::arg("k_offset"), nb::arg("v_offset"),
          nb::arg("heads"), nb::arg("group"), nb::arg("key_dim"), nb::arg("value_dim"), nb::arg("part"),
          nb::arg("skip").none(), nb::arg("delta"), nb::arg("key_decays"))
      .def(
          "scan",
          [](OwningProgram& p, int out, int x, int steps, int bc, long b_offset, long c_offset, const Table& rate,
             const Vector& bias, const Vector& skip, long part) {
            const long width = p.recorder().width(out), state_dim = static_cast<long>(rate.shape(0));
            if (static_cast<long>(rate.shape(1)) != width) {
              throw std::invalid_argument("scan: the rates do not have the result's width");
            }
            p.recorder().scan(out, x, steps, bc, b_offset, c_offset, state_dim, part, p.keep(rate),
                              p.keep(bias, width, "bias"), p.keep(skip, width, "skip"));
          },
          nb::arg("out"), nb::arg("x"), nb::arg("steps"), nb::arg("bc"), nb::arg("b_offset"), nb::arg("c_offset"),
          nb::arg("rate"), nb::arg("bias"), nb::arg("skip"), nb::arg("part"))
      .def(
          "unit",
          [](OwningProgram& p, int x, int input, int decay, const Vector& rate, const Vector& input_bias,
             const Vector& decay_bias, long part) {
            const long width = p.recorder().width(x);
            p.recorder().unit(x, input, decay, part, p.keep(rate, width, "rate"),
                              p.keep(input_bias, width, "input_bias"), p.keep(decay_bias, width, "decay_bias"));
          },
          nb::arg("x"), nb::arg("input"), nb::arg("decay"), nb::arg("rate"), nb::arg("input_bias"),
          nb::arg("decay_bias"), nb::arg("part"))
      .def(
          "recurrence_gates",
          [](OwningProgram& p, int out, int x, long step_offset, long factor_offset, const Vector& rate,
             const Vector& bias, float least, float most) {
            const long decays = static_cast<long>(rate.shape(0));
            p.recorder().recurrence_gates(out, x, step_offset, factor_offset, decays, p.keep(rate, decays, "rate"),
                                          p.keep(bias, decays, "bias"), least, most);
          },
          nb::arg("out"), nb::arg("x"), nb::arg("step_offset"), nb::arg("factor_offset"), nb::arg("rate"),
          nb::arg("bias"), nb::arg("least"), nb::arg("most"))
      .def("multiply",
           [](OwningProgram& p, int out, long out_offset, int x, long x_offset, int y, long y_offset, long width,
              const std::string& name) {
             p.recorder().multiply(out, out_offset, x, x_offset, y, y_offset, width, gate_kind(name));
           })
      .def("gate", [](OwningProgram& p, int out, int x,
                      const std::string& name) { p.recorder().gate(out, x, activation(name)); })
      .def("activate",
           [](OwningProgram& p, int x, const std::string& name) { p.recorder().activate(x, activation(name)); })
      .def("xielu",
           [](OwningProgram& p, int x, float positive, float negative, float linear, float least) {
             p.recorder().xielu(x, {.positive = positive, .negative = negative, .linear = linear, .least = least});
           })
      .def("clip", recording(&Recorder::clip))
      .def("scale_by_position",
           [](OwningProgram& p, int x, long offset, long width, const Vector& factors) {
             const long positions = static_cast<long>(factors.shape(0));
             p.recorder().scale_by_position(x, offset, width, p.keep(factors, positions, "factors"), positions);
           })
      .def("experts", record_experts, nb::arg("out"), nb::arg("x"), nb::arg("router"), nb::arg("inward"),
           nb::arg("outward"), nb::arg("active"), nb::arg("over_all"), nb::arg("shared").none(), nb::arg("gated"),
           nb::arg("activation"), nb::arg("factor"), nb::arg("accumulate"), nb::arg("scores"),
           nb::arg("choice_bias").none(), nb::arg("groups"), nb::arg("active_groups"), nb::arg("group_top"),
           nb::arg("least"), nb::arg("weight_factor"), nb::arg("margin"), nb::arg("scale_inputs"),
           nb::arg("router_bias").none(), nb::arg("in_biases").none(), nb::arg("out_biases").none(),
           nb::arg("routed"), nb::arg("expert_scales").none(), nb::arg("identities"))
      .def("add", recording(&Recorder::add))
      .def("predict_parts", recording(&Recorder::predict_parts))
      .def("correct_parts", recording(&Recorder::correct_parts))
      .def("match_magnitude", recording(&Recorder::match_magnitude))
      .def("join", recording(&Recorder::join))
      .def("add_to_parts", recording(&Recorder::add_to_parts))
      .def("scale_columns",
           [](OwningProgram& p, int x, const Vector& factors) {
             p.recorder().scale_columns(x, p.keep(factors, p.recorder().width(x), "factors"));
           })
      .def("keep_largest", recording(&Recorder::keep_largest))
      .def("scale", recording(&Recorder::scale))
      .def("copy_columns", recording(&Recorder::copy_columns))
      .def("soft_cap", recording(&Recorder::soft_cap))
      .def("select_rows", recording(&Recorder::select_rows))
      .def("logits", recording(&Recorder::logits))
      .def("adapt", [](OwningProgram& p, int out, int x,
                       const PackedMatrix& w) { return p.recorder().adapt(out, x, p.keep(w)); })
      .def("set_adapter",
           [](OwningProgram& p, long slot, const std::vector<std::shared_ptr<LowRank>>& changes) {
             const nb::gil_scoped_release release;
             p.set_adapter(slot, changes);
           })
      .def("remove_adapter",
           [](OwningProgram& p, long slot) {
             const nb::gil_scoped_release release;
             p.remove_adapter(slot);
           })
      .def("run", &run, nb::arg("token_ids"), nb::arg("positions"), nb::arg("row_starts"), nb::arg("block_tables"),
           nb::arg("logit_rows"), nb::arg("embedding_rows").none(), nb::arg("embedding_values").none(),
           nb::arg("adapters").none(), nb::arg("cross_tables").none(), nb::arg("cross_lengths").none(),
           nb::arg("state_slots").none(), nb::arg("state_rows").none(), nb::arg("seen_ends").none(), nb::arg("rotary_positions").none(), nb::arg("meanwhile").none(), nb::arg("interrupt"),
           nb::arg("operations"))
      .def("rows", [](OwningProgram& p, int x, long rows) { return view(p, p.recorder().rows_of(x, rows)); })
      .def("operations", [](OwningProgram& p) { return p.recorder().operations().size(); })
      .def(
          "profile",
          [](OwningProgram& p, bool by_shape) {
            nb::dict seconds;
            for (const Timing& timing : p.profile(by_shape)) {
              if (timing.calls > 0) seconds[timing.operation.c_str()] = timing.seconds;
            }
            return seconds;
          },
          nb::arg("by_shape"));
}

}  // namespace dragoman
