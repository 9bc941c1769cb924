from trainer_bridge.adapters.tensorflow.builder import (
    DatasetPipelineBuilder as DatasetPipelineBuilder,
)
from trainer_bridge.adapters.tensorflow.dataset import dataset as dataset
from trainer_bridge.adapters.tensorflow.distribute import (
    DistributedPaimonDatasetBuilder as DistributedPaimonDatasetBuilder,
)
from trainer_bridge.adapters.tensorflow.keras import ProgressCallback as ProgressCallback
from trainer_bridge.adapters.tensorflow.optimize import (
    TensorFlowPipelineOptimizer as TensorFlowPipelineOptimizer,
)
from trainer_bridge.adapters.tensorflow.strategies import (
    DistributedStrategy as DistributedStrategy,
)
from trainer_bridge.adapters.tensorflow.training_progress import (
    TrainingProgress as TrainingProgress,
)
