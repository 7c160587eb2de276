"""Trains an image classifier on towers: several devices, one set of weights.

    python train.py --train_dir=runs/first --num_towers=2
    python train.py --recipe=shapes          (nothing to download)
    tensorboard --logdir=runs/first

The same command continues a run that was stopped.
`python eval.py --train_dir=...` evaluates it.
"""

import os
import signal
import sys

from absl import app, flags

if sys.flags.safe_path:  # else Python has added this folder itself
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import command_line

# A recipe is a named set of defaults; a flag that is given overrides it. `tutorial` is what the
# flags below have as their defaults: the settings of tensorflow/models tutorials/image/cifar10.
RECIPES = {
    "tutorial": {},
    # A first look in half a minute on two CPU cores, with nothing to download.
    "shapes": {
        "train_dir": "runs/shapes",
        "dataset": "shapes",
        "global_batch_size": 64,
        "train_epochs": 8.0,
        "learning_rate": 0.02,
        "learning_rate_schedule": "cosine",
        "warmup_epochs": 1.0,
        "momentum": 0.9,
        "moving_average_decay": 0.99,
        "eval_every_epochs": 1.0,
    },
    # 90 % on CIFAR-10 in few epochs (docs/fast.md).
    "fast": {
        "train_dir": "runs/fast",
        "model": "fastnet",
        "compute_dtype": "bfloat16",
        "global_batch_size": 2048,
        "num_microbatches": 16,
        "train_epochs": 11.0,
        "learning_rate": 0.24,
        "learning_rate_schedule": "linear",
        "optimizer": "muon",
        "momentum": 0.6,
        "nesterov": True,
        "label_smoothing": 0.2,
        "moving_average_decay": 0.0,
        "checkpoint_every_steps": 50,
        "summary_every_steps": 100,
    },
}

flags.DEFINE_enum("recipe", "tutorial", list(RECIPES), "Named set of defaults for other flags.")
flags.DEFINE_string("train_dir", "runs/tutorial", "Folder of the run; an existing run goes on.")
flags.DEFINE_string(
    "begin_from",
    None,
    "Run or checkpoint that a new run begins from, at its number of examples seen, with the "
    "settings given here: runs/first, or runs/first/checkpoints/step-500. It stays as it is.",
)

flags.DEFINE_string(
    "dataset", "cifar10", "cifar10, shapes (drawn, not downloaded), or a TFDS data set's name."
)
flags.DEFINE_string(
    "data_dir",
    None,
    "Folder of prepared TFDS data sets, or one that holds cifar-10-batches-bin/; default: TFDS's.",
)
flags.DEFINE_enum("model", "cifarnet", ["cifarnet", "resnet", "fastnet"], "Network.")
flags.DEFINE_enum(
    "compute_dtype",
    "float32",
    ["float32", "bfloat16", "float16"],
    "Type that layers compute in; weights are float32 always.",
)

flags.DEFINE_integer(
    "num_towers", None, "Towers of each worker; default: one per visible GPU, else 1."
)
flags.DEFINE_list(
    "workers",
    [],
    "Processes of one run on several machines: host:port of each, the same list on all; the first "
    "is the chief, which has the run's folder. Or the environment variable TF_CONFIG says it. Each "
    "has --num_towers towers.",
)
flags.DEFINE_integer("worker_index", None, "Which of --workers this process is, from 0.")
flags.DEFINE_enum(
    "worker_reduction",
    None,
    ["ordered", "ring"],
    "How workers add up their gradients: along the tree of microbatches, for the bits of one "
    "worker, or around a ring; default: ordered where it has those bits.",
)
flags.DEFINE_float("worker_wait_seconds", 300.0, "How long a worker waits for the others to start.")
flags.DEFINE_integer("global_batch_size", 128, "Examples of one step, over all workers.")
flags.DEFINE_integer(
    "num_microbatches",
    0,
    "Equal parts of the global batch, the unit of arithmetic: with the same number of them, runs "
    "on different numbers of towers do the same. Batch norm sees one at a time, so for a network "
    "with batch norm they are part of the model. 0: 4 on CPUs, where they run side by side; on "
    "GPUs, and where 4 does not divide, one per tower; or what a run that goes on began with.",
)
flags.DEFINE_enum(
    "gradient_reduction", "mean", ["mean", "sum"], "Over microbatches; sum does not divide."
)
flags.DEFINE_enum(
    "batch_norm_statistics",
    "mean",
    ["mean", "first", "last", "each"],
    "Which microbatches' batch-norm statistics are kept: their mean, the first or last one's, or "
    "each one's own, with their divergence in the logs (the model has their mean).",
)
flags.DEFINE_integer(
    "intra_op_threads",
    None,
    "Threads that share the work of one operation, which shows in its last bits on a CPU; default: "
    "cores / num_microbatches, at least 1 (with GPUs all cores); or what a run that goes on began "
    "with.",
)
flags.DEFINE_bool(
    "deterministic",
    False,
    "TensorFlow's deterministic operations, for the same bits on GPUs. A CPU does not need them.",
)
flags.DEFINE_bool(
    "jit_compile",
    False,
    "Compile each microbatch's forward and backward pass with XLA, which is slow on CPUs.",
)

flags.DEFINE_float("train_epochs", 256.0, "End of the run, in epochs.")
flags.DEFINE_integer("max_steps", None, "End of the run, in steps, if that comes first.")
flags.DEFINE_float("learning_rate", 0.1, "Learning rate before scaling and decay.")
flags.DEFINE_enum(
    "learning_rate_schedule",
    "exponential",
    ["exponential", "piecewise", "cosine", "linear", "constant"],
    "How the rate decays over epochs; exponential is a staircase.",
)
flags.DEFINE_float("epochs_per_decay", 350.0, "Epochs between decays (exponential).")
flags.DEFINE_float("decay_factor", 0.1, "What a decay multiplies by (exponential, piecewise).")
flags.DEFINE_list("decay_epochs", [], "Epochs at which the rate decays (piecewise): 82,123.")
flags.DEFINE_float("warmup_epochs", 0.0, "Epochs over which the rate rises from 0.")
flags.DEFINE_enum(
    "learning_rate_scaling",
    "none",
    ["none", "linear", "sqrt"],
    "How the rate grows with global_batch_size / base_batch_size.",
)
flags.DEFINE_integer("base_batch_size", 128, "Global batch that --learning_rate was found for.")

flags.DEFINE_enum(
    "optimizer", "sgd", ["sgd", "adam", "adamw", "lion", "rmsprop", "muon"], "Keras optimizer."
)
flags.DEFINE_float("momentum", 0.0, "Momentum (sgd, rmsprop, muon).")
flags.DEFINE_bool("nesterov", False, "Nesterov momentum (sgd, muon).")
flags.DEFINE_float(
    "weight_decay",
    None,
    "Coefficient of weight decay: a term of the loss, decoupled for adamw, lion and muon; default: "
    "the model's (cifarnet 0.004, resnet 0.0001, fastnet 0).",
)
flags.DEFINE_enum(
    "weight_decay_filter",
    None,
    ["kernels", "hidden_dense_kernels"],
    "Which weights decay; default: the model's (cifarnet hidden_dense_kernels, others kernels).",
)
flags.DEFINE_float(
    "clip_norm", 0.0, "Largest global norm of the reduced gradients; 0: no clipping."
)
flags.DEFINE_float(
    "label_smoothing",
    0.0,
    "Share of a label that is spread over all classes, in training; evaluations have none.",
)
flags.DEFINE_float(
    "moving_average_decay",
    0.9999,
    "Of the weights; the averages are evaluated and exported. 0: none are kept.",
)
flags.DEFINE_integer("seed", 0, "Of initial weights, order of examples and augmentation.")

flags.DEFINE_integer("log_every_steps", 20, "Steps between two lines of metrics.jsonl.")
flags.DEFINE_integer(
    "summary_every_steps", 500, "Steps between two sets of histograms and images; 0: none."
)
flags.DEFINE_integer(
    "verify_every_steps",
    0,
    "Steps between two hashes of the whole state in metrics.jsonl, from step 0 to the last, by "
    "which `python -m towers.compare RUN_A RUN_B` finds the step where two runs part; 0: none.",
)
flags.DEFINE_integer("checkpoint_every_steps", 500, "Steps between two checkpoints.")
flags.DEFINE_integer("checkpoints_to_keep", 5, "The newest checkpoints that are kept.")
flags.DEFINE_string(
    "eval_split", "test", "Split that is evaluated, of those that the data set has; not train."
)
flags.DEFINE_float("eval_every_epochs", 0.0, "Epochs between two evaluations; 0: at the end.")
flags.DEFINE_bool(
    "eval_of_workers",
    False,
    "Beside each evaluation, the accuracy of each worker's share of the examples.",
)
flags.DEFINE_bool(
    "dry_run",
    False,
    "Say what the run would be, and its learning rate by epochs, and end; nothing is written or "
    "downloaded.",
)
flags.DEFINE_list("profile_steps", None, "First and last step of a profile for TensorBoard: A,B.")
flags.declare_key_flag("version")  # of command_line


def main(argv):
    """Trains, and returns the exit code."""
    # Until the training takes its signals over, and saves a checkpoint first.
    signal.signal(signal.SIGTERM, end_at_once)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
        signal.signal(signal.SIGHUP, end_at_once)
    try:
        command_line.provide_limits()
        return run_or_explain(argv)
    except KeyboardInterrupt:
        return stopped_at_once(signal.SIGINT)
    except BrokenPipeError:
        return command_line.output_is_gone()
    except ImportError as error:
        if error.name != "towers":  # which says that Keras is not on TensorFlow
            raise
        print(f"train.py: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # such as a full disk
        return command_line.ended_by_system("train.py", error)


def end_at_once(number, _):
    """Handles a signal before there is anything to save."""
    sys.exit(stopped_at_once(number))


def stopped_at_once(number):
    """Says so, where somebody reads it; returns the shell's exit code for a signal."""
    try:
        print("stopped at once; the newest checkpoint, if there is one, is as it was", flush=True)
    except OSError:  # it went with its terminal, or its pipe
        command_line.output_is_gone()
    return 128 + number


def run_or_explain(argv):
    """Reads the flags and trains; an error of the user's becomes one line and an exit code."""
    if flags.FLAGS.dry_run:
        keep_libraries_from_writing()
    # Imported here, so that --help answers without waiting for TensorFlow.
    from input_pipeline import datasets
    from towers import channel, checkpoints, console, noise, run_folder, settings, training

    noise.quiet_loggers()
    try:
        return run(settings_from_flags(argv), flags.FLAGS.dry_run)
    except settings.SettingsError as error:
        console.say_error("train.py", error)
        return 2
    except (
        channel.WorkerError,
        datasets.DataError,
        run_folder.RunFolderError,
        checkpoints.CheckpointError,
        training.TrainingError,
    ) as error:
        console.say_error("train.py", error)
        return 1


def keep_libraries_from_writing():
    """For a dry run: some libraries write into the home folder when they are first imported."""
    sys.dont_write_bytecode = True
    if "keras" in sys.modules:
        return
    keras_home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    if not os.path.exists(os.path.join(keras_home, "keras.json")):
        os.environ["KERAS_HOME"] = os.path.join(os.devnull, "keras")  # where nothing can be written
    # Keras imports it if it can, and it would write a list of the system's fonts.
    sys.modules.setdefault("matplotlib", None)


def settings_from_flags(argv):
    """The flags, with the recipe's values for those that were not given."""
    from towers import cluster, settings

    if argv[1:]:
        raise settings.SettingsError(f"unexpected argument {argv[1]!r}: flags begin with --")
    given = flags.FLAGS
    recipe = RECIPES[given.recipe]
    values = {
        name: recipe[name] if name in recipe and not given[name].present else given[name].value
        for name in settings.names()
    }
    values["decay_epochs"] = settings.numbers("decay_epochs", values["decay_epochs"], float)
    values["profile_steps"] = settings.numbers("profile_steps", values["profile_steps"], int)
    values["workers"] = tuple(values["workers"])
    try:
        members = cluster.from_tf_config(os.environ.get("TF_CONFIG") or "{}")
    except ValueError as error:
        raise settings.SettingsError(f"TF_CONFIG: {error}") from error
    if members and (given["workers"].present or given["worker_index"].present):
        raise settings.SettingsError(
            f"--workers={settings.shown(values['workers'])}: TF_CONFIG names workers too; give one "
            "of the two"
        )
    if members:
        values["workers"], values["worker_index"] = members.addresses, members.index
    return settings.TrainSettings(**values)


def run(chosen, dry_run):
    """The story of a training run; returns the exit code."""
    from towers import session

    with session.meet_workers(chosen) as workers:
        return run_with(workers, chosen, dry_run)


def run_with(workers, chosen, dry_run):
    """The story, once all workers are there; most often there is one."""
    from input_pipeline import batches, datasets, preprocess
    from towers import (
        console,
        devices,
        models,
        run_folder,
        session,
        settings,
        start_table,
        training,
    )

    folder = run_folder.RunFolder(chosen.train_dir)
    found = session.find(workers, folder)
    chosen = session.resolved(chosen, found.earlier, devices.visible_gpus(), found.cores)
    session.start_runtime(chosen.intra_op_threads, chosen.deterministic)
    tower_devices = session.tower_devices(chosen.num_towers)
    session.check_alike(workers, chosen)
    workers.start(chosen.worker_reduction)

    load = datasets.load_prepared if dry_run else datasets.load
    # First the one whose name may be wrong: to decode the other may take minutes.
    evaluated, train = workers.chief_first(
        lambda: [
            load(chosen.dataset, chosen.data_dir, split)
            for split in (chosen.eval_split, settings.TRAINING_SPLIT)
        ]
    )
    preprocessing = preprocess.for_images(
        models.NETWORKS[chosen.model].preprocessing, train.images.shape[1:]
    )

    learning_rate = session.learning_rate(chosen, len(train.images))
    plan = session.plan(chosen, len(train.images), train.class_names)
    config = session.config(
        chosen,
        tower_devices,
        plan,
        preprocessing=preprocessing.name,
        image_shape=preprocessing.output_shape,
        data_source=train.source,
        data_sha256=train.fingerprint,
        eval_sha256=evaluated.fingerprint,
    )
    session.check_same_data(workers, training=train.fingerprint, evaluation=evaluated.fingerprint)
    config = session.with_beginning(workers, config, found.earlier)
    if workers.is_chief:
        table = start_table.rows(config, learning_rate, len(evaluated.images))
        print(console.table(table), flush=True)
    if dry_run:
        if workers.is_chief:
            print(start_table.schedule(config, learning_rate))
        return 0

    trainer = session.build_trainer(
        chosen,
        tower_devices,
        config,
        learning_rate,
        lambda: preprocessing.evaluate(
            batches.spread_out(train.images, session.IMAGES_TO_ADAPT_TO)
        ).numpy(),
        workers,
    )
    shard = batches.Shard(workers.index, workers.count)
    # Made once, for TensorFlow keeps something of each data set; every iteration starts anew.
    evaluation_batches = batches.evaluation_batches(
        batches.as_tensor(evaluated.images),
        evaluated.labels,
        global_batch_size=chosen.global_batch_size,
        preprocess=preprocessing.evaluate,
        shard=shard,
    )
    training_images = batches.as_tensor(train.images)
    data = training.Data(
        training=lambda first_step, last_step: batches.training_batches(
            training_images,
            train.labels,
            global_batch_size=chosen.global_batch_size,
            seed=chosen.seed,
            first_step=first_step,
            last_step=last_step,
            preprocess=preprocessing.train,
            shard=shard,
        ),
        evaluation=evaluation_batches,
        evaluation_count=len(evaluated.images),
        evaluation_split=chosen.eval_split,
    )
    run_of_this = training.Run(
        trainer,
        folder,
        plan,
        data,
        run_sha256=settings.run_sha256(config),
        begins_elsewhere=config["resolved"]["begins_from"] is not None,
    )
    return session.train(run_of_this, config)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse)
