import subprocess
import sys


def test_registry_imports_registers_no_experiment_and_imports_no_tensorflow():
    code = (
        "import sys; from official_lite.common import registry_imports; "
        "from official_lite.core import exp_factory, task_factory; "
        "assert exp_factory.list_experiments() == []; "
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
