#!/bin/sh
# Runs a command of Siltstone; or, where Spark on Kubernetes starts this image, one of its executors.
set -eu
if [ "${1:-}" != executor ]; then
    exec siltstone "$@"
fi
home=$(python3 -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
# Spark passes the options of Java one by one, as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, and so on.
set --
number=0
while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
    set -- "$@" "$option"
    number=$((number + 1))
done
exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$home/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
