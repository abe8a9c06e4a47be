"""`import torch_xla`."""

from __future__ import annotations

import sys


def test_modules_are_the_very_same(fresh_process):
    fresh_process("""
        import sys
        import lazy_runtime
        lazy_runtime.install_torch_xla_alias()
        lazy_runtime.install_torch_xla_alias()
        import torch
        assert "jax" not in sys.modules
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as met
        import torch_xla.debug.profiler as xp
        import torch_xla.distributed.parallel_loader as pl
        import torch_xla.runtime as xr
        import torch_xla.test.test_utils
        from torch_xla import runtime
        from torch_xla.amp import autocast, syncfree
        from torch_xla.distributed.data_parallel import ParallelLoader
        from torch_xla.experimental import eager_mode
        assert torch_xla is lazy_runtime.torch_xla and torch_xla.__spec__.name == "lazy_runtime.torch_xla"
        assert xm is lazy_runtime.torch_xla.core.xla_model and xm.__name__ == "lazy_runtime.torch_xla.core.xla_model"
        assert met is lazy_runtime.torch_xla.debug.metrics and xp is lazy_runtime.torch_xla.debug.profiler
        assert xr is runtime is lazy_runtime.torch_xla.runtime and pl.ParallelLoader is ParallelLoader
        assert torch_xla.torch_xla.compile is torch_xla.compile
        assert torch_xla.device() == xm.xla_device() == torch.device("xla:0")
        xm.answer = 42
        assert lazy_runtime.torch_xla.core.xla_model.answer == 42
        for name, text in [
            ("torch_xla.nothing.here", "lazy_runtime, which stands in for torch_xla here, has no lazy_runtime."),
        ]:
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                assert text in str(error), error
            else:
                raise AssertionError(name)
        compiled = torch.compile(torch.sin, backend="openxla")  # Dynamo's stub imports torch_xla
        x = torch.ones(3, device="xla")
        assert torch.equal(compiled(x), x.sin())
        assert "Metric: CompileTime" in torch_xla._XLAC._xla_metrics_report()
    """)


def test_a_real_torch_xla_is_left_alone_unless_told_otherwise(fresh_process, tmp_path):
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla" / "__init__.py").write_text("real = True\n")
    path = repr(str(tmp_path))
    fresh_process(f"""
        import sys
        sys.path.insert(0, {path})
        import lazy_runtime
        try:
            lazy_runtime.install_torch_xla_alias()
        except RuntimeError as error:
            assert "torch_xla is installed at" in str(error) and "replace=True" in str(error)
        else:
            raise AssertionError
        lazy_runtime.install_torch_xla_alias(replace=True)
        import torch
        import torch_xla
        assert torch_xla is lazy_runtime.torch_xla
        assert torch.ones(2, device=torch_xla.device()).tolist() == [1, 1]
    """)
    fresh_process(f"""
        import sys
        sys.path.insert(0, {path})
        import torch_xla
        import lazy_runtime
        try:
            lazy_runtime.install_torch_xla_alias(replace=True)
        except RuntimeError as error:
            assert "has been imported from" in str(error)
        assert torch_xla.real
    """)


def test_the_distribution_is_there_with_the_alias_alone(fresh_process):
    fresh_process("""
        import importlib.metadata
        import lazy_runtime
        from lazy_runtime.common.version import TORCH_XLA_VERSION
        def find(**of):
            return [each.version for each in importlib.metadata.distributions(**of) if each.name == "torch_xla"]
        assert find() == find(name="torch_xla") == []
        lazy_runtime.install_torch_xla_alias()
        import torch_xla
        assert importlib.metadata.version("torch_xla") == torch_xla.__version__ == TORCH_XLA_VERSION
        assert importlib.metadata.version("torch-xla") == TORCH_XLA_VERSION.split("+")[0]
        assert lazy_runtime.__version__ != torch_xla.__version__
        assert lazy_runtime.__version__ == importlib.metadata.version("openxla-torch")
        assert find() == find(name="torch_xla") == [TORCH_XLA_VERSION]
        assert find(name="torch") == find(path=["."]) == []
        assert importlib.metadata.packages_distributions()["torch_xla"] == ["torch_xla"]
        lazy_runtime.alias.inherit()  # the folder on sys.path: no second one
        assert find() == [TORCH_XLA_VERSION]
    """)


def test_short_names(fresh_process):
    fresh_process("""
        import importlib
        import sys
        import lazy_runtime
        assert lazy_runtime.core.functions is lazy_runtime.torch_xla.core.functions
        import lazy_runtime.core.xla_model as xm
        import lazy_runtime.debug.metrics as met
        from lazy_runtime.debug import profiler as xp
        from lazy_runtime.distributed.spmd import Mesh
        from lazy_runtime.experimental.eager import eager_mode
        assert xm is lazy_runtime.core.xla_model is lazy_runtime.torch_xla.core.xla_model
        assert met is lazy_runtime.torch_xla.debug.metrics is lazy_runtime.debug.metrics
        assert Mesh is lazy_runtime.torch_xla.distributed.spmd.mesh.Mesh
        assert xp is lazy_runtime.torch_xla.debug.profiler and lazy_runtime.debug.recompiles() == []
        from lazy_runtime.alias import SHORT
        for name in SHORT:
            module = importlib.import_module(f"lazy_runtime.{name}")
            assert module is importlib.import_module(f"lazy_runtime.torch_xla.{name}")
            assert module.__spec__.name == module.__name__ == f"lazy_runtime.torch_xla.{name}", module
        for name in ("lazy_runtime.core.nothing", "lazy_runtime.nothing", "lazy_runtime.cores"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                assert error.name == name
            else:
                raise AssertionError(name)
    """)


def test_nothing_is_aliased_unasked():
    assert "torch_xla" not in sys.modules


# What PyTorch/XLA's users find where after `import torch_xla`, with the first arguments' names.
NAMES = """
: device(index) devices() real_devices() device_count() sync(wait,reset_scope) step() compile(f) manual_seed(seed)
.torch_xla: device(index) devices() real_devices() device_count() sync(wait,reset_scope) step()
.torch_xla: compile(f,full_graph,name,max_different_graphs,custom_compile_options) manual_seed(seed,device)
.core.xla_model: xla_device(n,devkind) get_xla_supported_devices(devkind,max_devices) xla_device_hw(device)
.core.xla_model: xla_device_kind(device) xla_real_devices(devices) get_memory_info(device) wait_device_ops(devices)
.core.xla_model: mark_step(wait,reset_scope) optimizer_step(optimizer,barrier,optimizer_args,groups,pin_layout)
.core.xla_model: add_step_closure(closure,args,run_async) unlazy(tensors) is_master_ordinal(local)
.core.xla_model: set_rng_state(seed,device) get_rng_state(device) save(data,file_or_path,master_only,global_master)
.core.xla_model: get_stablehlo(tensors) get_stablehlo_bytecode(tensors) RateTracker(smooth_factor)
.core.xla_model: master_print(args,fd,local,flush) broadcast_master_param(model) rendezvous(tag,payload,replicas)
.core.xla_model: all_reduce(reduce_type,inputs,scale,groups,cctx,pin_layout) reduce_gradients(optimizer,groups)
.core.xla_model: all_gather(value,dim,groups,output,pin_layout) collective_permute(value,pairs)
.core.xla_model: all_to_all(value,split_dimension,concat_dimension,split_count,groups,pin_layout)
.core.xla_model: reduce_scatter(reduce_type,input,scale,scatter_dim,shard_count,groups,output,pin_layout)
.core.xla_model: collective_broadcast(tensors,root_ordinal,groups,pin_layout) mesh_reduce(tag,data,reduce_fn)
.core.functions: all_reduce(reduce_type,value,scale,groups) all_gather(value,dim)
.core.functions: all_to_all(value,split_dimension,concat_dimension,split_count,groups,pin_layout)
.distributed.xla_multiprocessing: spawn(fn,args,nprocs,join,daemon,start_method) MpModelWrapper(model)
.distributed.xla_multiprocessing: MpSerialExecutor()
.runtime: device_type() addressable_device_count() global_ordinal() local_ordinal() process_index() host_index()
.runtime: world_size() process_count() local_process_count() local_device_count() global_device_count()
.runtime: addressable_runtime_device_count() global_runtime_device_count() global_runtime_device_attributes()
.runtime: runtime_device_attributes(device) set_device_type(pjrt_device) initialize_cache(path,readonly)
.runtime: get_num_cached_compilation_graph() is_spmd() use_spmd(auto) is_bf16_supported()
.experimental: eager_mode(enable) eager_mode_context(enable) is_eager_mode()
.experimental.eager: eager_mode(enable) eager_mode_context(enable) is_eager_mode()
.debug.metrics: metrics_report(counter_names,metric_names) short_metrics_report(counter_names,metric_names)
.debug.metrics: counter_names() counter_value(name) metric_names() metric_data(name) executed_fallback_ops()
.debug.metrics: clear_all() clear_counters() clear_metrics() prometheus_text() json_report()
.debug.metrics_saver: save_metrics(metrics_file)
.debug.graph_saver: save_tensors_graph(save_dir,name,tensors)
.debug.profiler: start_trace(log_dir) stop_trace() Trace(name) StepTrace(name) start_server(port,only_on_master)
.debug.profiler: trace(service_addr,logdir,duration_ms,num_tracing_attempts,host_tracer_level) trace_me(scope)
._XLAC: _xla_metrics_report() _get_xla_tensors_text(tensors) _get_xla_tensors_hlo(tensors)
._XLAC: _get_xla_tensors_dot(tensors) _get_xla_sharding_spec(tensor)
.distributed.parallel_loader: ParallelLoader(cpu_loader,devices,batchdim,batches_per_execution)
.distributed.parallel_loader: MpDeviceLoader(loader,device)
.distributed.spmd: Mesh(device_ids,mesh_shape,axis_names) HybridMesh(ici_mesh_shape,dcn_mesh_shape,axis_names)
.distributed.spmd: get_1d_mesh(axis_name) set_global_mesh(mesh) get_global_mesh() XLAShard XLAShardedTensor
.distributed.spmd: mark_sharding(t,mesh,partition_spec) clear_sharding(t) ShardingSpec(mesh,partition_spec,minibatch)
.distributed.spmd: mark_sharding_with_gradients(t,mesh,partition_spec) MarkShardingFunction ShardingType
.distributed.spmd: wrap_if_sharded(x) wrap_as_sharded_tensor(t) apply_backward_optimization_barrier(m)
.distributed.spmd.xla_sharding: Mesh mark_sharding(t,mesh,partition_spec) clear_sharding(t) ShardingSpec get_1d_mesh
.distributed.spmd.xla_sharded_tensor: XLAShard XLAShardedTensor
.distributed.spmd.debugging: visualize_tensor_sharding(t) visualize_sharding(sharding,use_color,scale,min_width)
.experimental.spmd_fully_sharded_data_parallel: SpmdFullyShardedDataParallel(module,mesh,shard_output)
.distributed.data_parallel: ParallelLoader(cpu_loader,devices,batchdim,batches_per_execution)
.distributed.data_parallel: DataParallel(network,device_ids) Context(device)
.utils.serialization: save(data,path,master_only,global_master) load(path)
.utils.utils: SampleGenerator(data,sample_count) getenv_as(name,type,defval)
.utils.dlpack: to_dlpack(xla_tensor) from_dlpack(ext_data)
.utils.checkpoint: checkpoint(function)
.amp: autocast(device,enabled,dtype,cache_enabled)
.amp.syncfree: SGD(params) Adam(params) AdamW(params)
.test.test_utils: print_training_update(device,step,loss,rate,global_rate,epoch,summary_writer)
.test.test_utils: print_test_update(device,accuracy,epoch,step) get_summary_writer(logdir) now(format)
.core.xla_env_vars: PJRT_DEVICE
"""


def test_names_and_arguments(fresh_process):
    fresh_process(f"""
        import importlib
        import inspect
        import operator
        import re
        import lazy_runtime
        lazy_runtime.install_torch_xla_alias()
        import torch_xla
        for line in {NAMES.strip().splitlines()}:
            module, _, names = f"torch_xla{{line}}".partition(": ")
            for name, arguments in re.findall(r"(\\w+)(?:\\(([^)]*)\\))?", names):
                found = operator.attrgetter(f"{{module}}.{{name}}"[len("torch_xla."):])(torch_xla)
                assert found is getattr(importlib.import_module(module), name)
                if callable(found):
                    expected = arguments.split(",") if arguments else []
                    given = list(inspect.signature(found).parameters)[: len(expected)]
                    assert given == expected, (module, name, given)
    """)
